"""A group of options is declared once, and each command that takes it takes all of it."""

from dataclasses import dataclass
from typing import Annotated, Any

import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from pratique_cli.commands.release.options import ReleaseOptions
from pratique_cli.options import option_names, takes_options
from pratique_cli.source_options import SourceOptions
from tests.unit.cli.conftest import Run


@dataclass(frozen=True, kw_only=True)
class Group:
    some_folder: Annotated[str | None, typer.Option(help="A folder.")] = None
    count: Annotated[int, typer.Option(min=1, help="How many.")] = 3
    quick: Annotated[bool, typer.Option(help="Be quick.")] = False
    prefix: str = ""


def run(*arguments: str, prefixed: bool = False) -> tuple[Result, list[Any]]:
    got: list[Any] = []

    @takes_options(Group, "left", "right", prefixed=True)
    def two(left: Group, right: Group, last: str = "x") -> None:
        got.extend([left, right, last])

    @takes_options(Group, "group")
    def one(first: str, *, group: Group) -> None:
        got.extend([first, group])

    app = typer.Typer()
    app.command()(two if prefixed else one)
    return CliRunner().invoke(app, list(arguments)), got


def test_what_was_typed_arrives_as_one_object() -> None:
    result, got = run("first", "--some-folder", "a", "--count", "4", "--quick")
    assert (result.exit_code, got) == (0, ["first", Group(some_folder="a", count=4, quick=True)])
    assert run("first")[1] == ["first", Group()]


def test_two_of_a_group_are_told_apart_by_their_prefix() -> None:
    result, got = run("--left-count", "1", "--right-quick", "--last", "y", prefixed=True)
    assert result.exit_code == 0, result.output
    assert got == [Group(count=1, prefix="left-"), Group(quick=True, prefix="right-"), "y"]


def test_limits_hold_and_a_switch_has_no_opposite() -> None:
    assert run("first", "--count", "0")[0].exit_code == 2
    assert run("first", "--no-quick")[0].exit_code == 2
    assert run("--count", "1", prefixed=True)[0].exit_code == 2


@pytest.mark.parametrize(
    ("command", "group", "prefixes"),
    [
        ("fetch", SourceOptions, [""]),
        ("resolve", SourceOptions, [""]),
        ("release build", ReleaseOptions, [""]),
        ("release record", ReleaseOptions, [""]),
        ("release verify", ReleaseOptions, [""]),
        ("release review", ReleaseOptions, ["reference-", "candidate-"]),
    ],
)
def test_a_command_takes_its_whole_group(pratique: Run, command: str, group: type[Any], prefixes: list[str]) -> None:
    told = pratique(*command.split(), "--help").out.split()
    wanted = [f"--{prefix}{name.replace('_', '-')}" for prefix in prefixes for name in option_names(group)]
    assert [name for name in wanted if name not in told] == []

"""``pratique cache``: what has to be said, and what stands in a service or pod."""

from pathlib import Path

import pytest

from pratique_cli.kube import _sources, _sub_paths
from pratique_contract.sources import cache_folder
from tests.unit.cli.conftest import Run


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        ((), 2, "Say whose services may use the volume"),
        (("-n", "demo", "-A"), 2, "Say whose services may use the volume"),
        (("-A", "--older-than", "soon"), 2, "--older-than takes a number and m, h or d"),
        (("-A", "--older-than", "-1d"), 2, "--older-than takes a number and m, h or d"),
        (("-A", "--older-than", "59m"), 2, "--older-than takes at least 1h"),
    ],
)
def test_what_would_be_dangerous_or_unclear_is_wrong_usage(
    pratique: Run, tmp_path: Path, arguments: tuple[str, ...], code: int, sentence: str
) -> None:
    result = pratique("cache", "prune", tmp_path, *arguments)
    assert (result.code, sentence in result.err) == (code, True), result.err


def test_a_folder_that_is_not_there_is_told(pratique: Run, tmp_path: Path) -> None:
    result = pratique("cache", "list", tmp_path / "none")
    assert (result.code, "none is not a folder" in result.err) == (3, True), result.err
    assert pratique("cache", "list", tmp_path).out.split() == ["NAME", "STATE", "SIZE", "IDLE", "SOURCE"]


def test_every_source_of_a_service_counts_wherever_it_stands() -> None:
    spec = {
        "model": {"uri": "hf://o/m", "revision": "1", "adapters": [{"name": "a", "uri": "s3://b/p"}]},
        "tokenizer": {"uri": "oci://h/r@sha256:" + "0" * 64},
        "later": [{"deep": {"uri": "https://h/x.tar", "revision": "sha256:" + "0" * 64}}],
        "mounted": {"uri": "pvc://models/x"},
    }
    wanted = [
        ("hf://o/m", "1"),
        ("s3://b/p", None),
        ("oci://h/r@sha256:" + "0" * 64, None),
        ("https://h/x.tar", "sha256:" + "0" * 64),
    ]
    assert _sources(spec) == {Path(cache_folder(uri, revision)).name for uri, revision in wanted}


def test_every_container_s_mount_counts() -> None:
    def container(*paths: str | None) -> dict[str, object]:
        return {"volumeMounts": [{"name": "cache", **({} if path is None else {"subPath": path})} for path in paths]}

    pod = {"initContainers": [container("hf-1"), {}], "containers": [container(None, "hf-2/x", "/hf-3/")]}
    assert _sub_paths(pod) == {"hf-1", "hf-2", "hf-3"}

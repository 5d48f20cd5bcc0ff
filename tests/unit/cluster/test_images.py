from __future__ import annotations

from pathlib import Path

import pytest

from e2e.cluster import images
from e2e.cluster.dependencies import parse_project, requirements
from e2e.cluster.errors import ClusterError

DOCUMENT = {
    "project": {
        "name": "pratique",
        "version": "1.2.3",
        "dependencies": ["pydantic>=2"],
        "optional-dependencies": {
            "server": ["torch>=2", "pydantic>=2"],
            "cli": ["typer"],
            "dev": ["pratique[server, cli]", "pytest"],
        },
        "scripts": {"pratique": "pratique_cli.__main__:main"},
    }
}


def test_requirements_are_the_base_and_the_extras_once_each() -> None:
    assert requirements(parse_project(DOCUMENT), ["server", "cli"]) == ["pydantic>=2", "torch>=2", "typer"]


def test_an_extra_may_name_other_extras() -> None:
    assert requirements(parse_project(DOCUMENT), ["dev"]) == ["pydantic>=2", "pytest", "torch>=2", "typer"]


def test_an_unknown_extra_is_refused() -> None:
    with pytest.raises(ClusterError, match="gpu"):
        requirements(parse_project(DOCUMENT), ["gpu"])


def test_both_recipes_find_their_extras_and_packages_in_this_tree() -> None:
    root = Path(images.__file__).parents[2]
    project = images.read_project(root / "pyproject.toml")
    for recipe in images.RECIPES:
        assert requirements(project, recipe.extras)
        assert all((root / folder / package).is_dir() for folder, package in recipe.code)
    operator = next(recipe for recipe in images.RECIPES if recipe.name == "operator")
    assert not any(item.startswith("torch") for item in requirements(project, operator.extras))


def test_a_package_is_copied_without_what_tools_leave_in_it(tmp_path: Path) -> None:
    source = tmp_path / "package"
    (source / "__pycache__").mkdir(parents=True)
    (source / "__pycache__/a.pyc").touch()
    (source / "data.json").write_text("{}")
    (source / "__init__.py").touch(mode=0o755)
    images.copy_package(source, tmp_path / "copy")
    assert sorted(path.name for path in (tmp_path / "copy").iterdir()) == ["__init__.py", "data.json"]
    assert (tmp_path / "copy/__init__.py").stat().st_mode & 0o777 == 0o644
    with pytest.raises(ClusterError):
        images.copy_package(tmp_path / "absent", tmp_path / "other")


def test_byte_code_is_reproducible_and_never_compared_with_its_source(tmp_path: Path) -> None:
    codes = []
    for name in ("1", "2"):
        module = tmp_path / name / "opt/pratique/app/m.py"
        module.parent.mkdir(parents=True)
        module.write_text("NAMES = {'a', 'b', 'c'}\n\ndef f(x):\n    return x in {'p', 'q', 'r'}\n")
        images.byte_compile(tmp_path / name, log=tmp_path / "log")
        codes += [path.read_bytes() for path in module.parent.rglob("*.pyc")]
    assert len(codes) == 2
    assert codes[0] == codes[1]
    assert codes[0][4:8] == b"\x01\0\0\0"  # hash-based, unchecked
    assert b"/opt/pratique/app/m.py" in codes[0]
    assert str(tmp_path).encode() not in codes[0]


def test_wheels_beside_the_index_are_part_of_the_key(tmp_path: Path) -> None:
    (tmp_path / "torch-2.whl").touch()
    assert images.wheel_names([str(tmp_path), "https://example.org/wheels"]) == ["torch-2.whl"]

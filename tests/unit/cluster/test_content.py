from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from e2e.cluster.content import Cache, digest_of, digest_of_files, mounts_below, write_atomically
from e2e.cluster.errors import ClusterError


def test_equal_inputs_have_equal_keys_whatever_the_order_of_a_mapping() -> None:
    assert digest_of("go", {"a": 1, "b": (2, 3)}) == digest_of("go", {"b": [2, 3], "a": 1})


def test_keys_do_not_change_between_versions_of_the_tool() -> None:
    assert digest_of("go", ["-trimpath"], 1) == "5b42595757d681104bf0"


@pytest.mark.parametrize("change", ["name", "bytes", "mode"])
def test_a_key_of_files_covers_names_bytes_and_modes(tmp_path: Path, change: str) -> None:
    file = tmp_path / "go.mod"
    file.write_text("module a\n")
    before = digest_of_files(tmp_path, [file])
    if change == "name":
        file = file.rename(tmp_path / "go.sum")
    elif change == "bytes":
        file.write_text("module b\n")
    else:
        file.chmod(0o755)
    assert digest_of_files(tmp_path, [file]) != before


def test_the_order_of_files_does_not_matter(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a", "b")]
    for file in files:
        file.write_text(file.name)
    assert digest_of_files(tmp_path, files) == digest_of_files(tmp_path, files[::-1])


def test_an_entry_is_built_once(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    built = []

    def build(target: Path) -> None:
        built.append(target)
        (target / "program").write_text("x")

    first = cache.entry("go", "k", build)
    second = cache.entry("go", "k", build)
    assert first == second == tmp_path / "go" / "k"
    assert len(built) == 1
    assert (first / "program").read_text() == "x"


def test_a_failed_build_leaves_no_entry(tmp_path: Path) -> None:
    cache = Cache(tmp_path)

    def build(target: Path) -> None:
        (target / "half").write_text("x")
        raise ClusterError("killed")

    with pytest.raises(ClusterError):
        cache.entry("go", "k", build)
    assert not cache.has("go", "k")
    assert list((tmp_path / "go").iterdir()) == []


def test_mounts_in_a_tree_are_found_deepest_first_and_neighbours_are_not() -> None:
    mounts = "proc /c/root/a/proc proc rw 0 0\nsys /c/root/a/proc/sys sysfs rw 0 0\nx /c/root/ab ext4 rw 0 0\n"
    assert mounts_below(mounts, Path("/c/root/a")) == ["/c/root/a/proc/sys", "/c/root/a/proc"]


def test_prune_keeps_the_most_recently_used_and_removes_what_killed_runs_left(tmp_path: Path) -> None:
    import os

    cache = Cache(tmp_path)
    for age, key in enumerate(["new", "middle", "old"]):
        path = cache.entry("go", key, lambda _: None)
        os.utime(path, (1000 - age, 1000 - age))
    (tmp_path / "go" / ".partial-1").mkdir()
    assert cache.prune("go", keep=2) == ["old"]
    assert sorted(path.name for path in (tmp_path / "go").iterdir()) == ["middle", "new"]


def _hold(root: Path, held: multiprocessing.synchronize.Event, release: multiprocessing.synchronize.Event) -> None:
    with Cache(root).locked():
        held.set()
        release.wait(10)


def test_two_processes_do_not_hold_the_lock_together(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    held, release = context.Event(), context.Event()
    other = context.Process(target=_hold, args=(tmp_path, held, release))
    other.start()
    assert held.wait(10)
    with pytest.raises(ClusterError, match="another run"), Cache(tmp_path).locked(wait_s=0, say=lambda _: None):
        pass
    release.set()
    other.join(10)
    with Cache(tmp_path).locked(wait_s=0):
        pass


def test_writing_a_file_leaves_nothing_beside_it(tmp_path: Path) -> None:
    write_atomically(tmp_path / "sub" / "images.json", "{}")
    assert [path.name for path in (tmp_path / "sub").iterdir()] == ["images.json"]

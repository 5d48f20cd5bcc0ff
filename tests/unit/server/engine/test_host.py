"""Facts of the host and of our own build: threads, cores, digest of the source."""

import os
import shutil
from pathlib import Path

import pytest
import torch

from pratique_server.engine import host, identity
from pratique_server.engine.launcher import core_environment
from pratique_server.engine.threads import available_cores, thread_environment


@pytest.mark.parametrize(("cores", "threads"), [(1, "1"), (2, "1"), (8, "7")])
def test_the_api_process_keeps_a_core_where_there_is_one(cores: int, threads: str) -> None:
    environment = thread_environment({}, cores=cores)
    assert environment["OMP_NUM_THREADS"] == environment["MKL_NUM_THREADS"] == threads
    assert environment["OMP_WAIT_POLICY"] == "PASSIVE"


def test_the_person_who_runs_it_decides() -> None:
    given = {"PRATIQUE_ENGINE_THREADS": "5", "PRATIQUE_ENGINE_WAIT_POLICY": "active", "OMP_NUM_THREADS": "99"}
    environment = thread_environment(given, cores=2)
    assert (environment["OMP_NUM_THREADS"], environment["OMP_WAIT_POLICY"]) == ("5", "ACTIVE")


@pytest.mark.parametrize(
    "given", [{"PRATIQUE_ENGINE_THREADS": "0"}, {"PRATIQUE_ENGINE_THREADS": "x"}, {"PRATIQUE_ENGINE_WAIT_POLICY": "x"}]
)
def test_a_setting_that_makes_no_sense_is_refused(given: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"PRATIQUE_ENGINE|invalid literal"):
        thread_environment(given, cores=2)


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"cpu.max": "150000 100000"}, 2),
        ({"cpu.max": "10000 100000"}, 1),
        ({"cpu.max": "max 100000"}, None),
        ({"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "100000"}, 1),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ({}, None),
    ],
)
def test_a_containers_cpu_limit_counts(tmp_path: Path, files: dict[str, str], quota: int | None) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    cores = len(os.sched_getaffinity(0))
    assert available_cores(cgroup_root=tmp_path) == min(cores, quota or cores)


def test_the_core_is_offline_and_writes_only_into_its_own_folder(tmp_path: Path) -> None:
    environment = core_environment({"PATH": "/bin", "HF_HOME": "/root/.cache"}, directory=tmp_path)
    assert environment["HF_HUB_OFFLINE"] == "1"
    assert environment["HF_HOME"].startswith(str(tmp_path))
    assert environment["PATH"] == "/bin"


def test_the_build_is_the_source_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host and an image made from the same tree must agree; any edit, rename or new file must show."""
    root = tmp_path / "package"
    (root / "sub").mkdir(parents=True)
    (root / "a.py").write_text("x = 1\n")
    (root / "sub" / "b.py").write_text("y = 2\n")
    monkeypatch.setattr(identity, "_package_root", lambda _: root)
    build = identity.engine_build.__wrapped__
    first = build()
    (root / "__pycache__").mkdir()
    (root / "__pycache__" / "a.cpython-311.pyc").write_bytes(b"x")
    shutil.copytree(root, tmp_path / "copy")
    monkeypatch.setattr(identity, "_package_root", lambda _: tmp_path / "copy")
    assert build() == first
    (tmp_path / "copy" / "sub" / "b.py").rename(tmp_path / "copy" / "sub" / "c.py")
    renamed = build()
    (tmp_path / "copy" / "a.py").write_text("x = 2\n")
    changed = build()
    assert len({first, renamed, changed}) == 3


def test_what_only_fetches_or_reviews_is_not_in_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fix in a downloader made every recorded release another one."""
    (tmp_path / "contract").mkdir()
    (tmp_path / "server" / "gate").mkdir(parents=True)
    folders = {"pratique_contract": tmp_path / "contract", "pratique_server": tmp_path / "server"}
    monkeypatch.setattr(identity, "_package_root", folders.__getitem__)
    build = identity.engine_build.__wrapped__
    empty = build()
    for name in ("fetch", "review"):
        (tmp_path / "server" / name).mkdir()
        (tmp_path / "server" / name / "program.py").write_text("z = 3\n")
    assert build() == empty
    (tmp_path / "server" / "gate" / "gate.py").write_text("z = 3\n")
    assert build() != empty


def test_the_kernels_are_named_for_whoever_compares_two_hosts() -> None:
    facts = host.kernel_facts()
    assert facts["cpuCapability"] == torch.backends.cpu.get_cpu_capability()
    assert facts["oneDnn"][0].isdigit()
    assert all(facts.values())
    topology = host.topology_facts()
    assert (topology["cores"], topology["coresOfHost"]) == (available_cores(), os.cpu_count())
    assert topology["memoryBytes"] > 2**28


def test_device_class_names_what_decides_rounding() -> None:
    assert identity.device_class("cpu").startswith("cpu-")
    assert identity.library_versions().keys() == {"torch", "transformers", "tokenizers", "safetensors", "jinja2"}

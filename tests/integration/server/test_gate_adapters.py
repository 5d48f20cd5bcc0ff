"""Adapters, quantization and model code as parts of a release: the approved ones get ready, any other never does, by its own name."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pratique_contract.reasons import Reason
from pratique_contract.record import ReleaseRecord
from pratique_contract.serving import ServingSpec
from pratique_server.offline.loading import record_release
from tests.integration.server.running import make_spec, serving, start_in_this_process
from tests.support.adapters import make_adapter
from tests.support.model_code import CODE, add_code, edit_config
from tests.support.mutations import copy_of

Change = Callable[["Release"], Any]


class Release:
    """A folder tree with a model that runs its own code and two adapters, and the document that serves it in int8."""

    def __init__(self, model: Path, folder: Path) -> None:
        self.folder = folder
        self.model = copy_of(model, folder / "model")
        self.adapters = {
            name: make_adapter(folder / name, model, seed=seed) for seed, name in enumerate(("first", "second"))
        }
        self.modes = dict.fromkeys(self.adapters, "Merged")
        self.quantization: dict[str, Any] = {"method": "Int8WeightOnly"}
        self.trust = True
        add_code(self.model)

    def spec(self, record: ReleaseRecord | None = None) -> ServingSpec:
        release: dict[str, Any] = {"policy": "Enforce"}
        if record is not None:
            path = self.folder / "record.json"
            path.write_text(record.to_json())
            release |= {"record_path": str(path), "fingerprint": record.fingerprint}
        adapters = [
            {"name": name, "path": str(path), "uri": f"file://{path}", "mode": self.modes[name]}
            for name, path in self.adapters.items()
        ]
        model = {"path": str(self.model), "uri": "file:///m", "adapters": adapters, "trust_remote_code": self.trust}
        return make_spec(self.model, model=model, quantization=self.quantization, release=release)


_RECORDS: list[ReleaseRecord] = []


@pytest.fixture
async def record(tiny_model_dir: Path, tmp_path: Path) -> ReleaseRecord:
    if not _RECORDS:
        _RECORDS.append(await record_release(Release(tiny_model_dir, tmp_path / "recorded").spec()))
    return _RECORDS[0]


@pytest.mark.req("R62", "R64", "R65", "R130")
async def test_the_recorded_adapters_quantization_and_code_get_ready(
    record: ReleaseRecord, tiny_model_dir: Path, tmp_path: Path
) -> None:
    spec = Release(tiny_model_dir, tmp_path / "pod").spec(record)
    with serving(spec, start_engine=start_in_this_process) as (server, _):
        server.wait_ready()
        manifest = server.management.get("/manifest").json()
    assert [(entry["name"], entry["mode"]) for entry in manifest["adapters"]["adapters"]] == [
        ("first", "Merged"), ("second", "Merged"),
    ]  # fmt: skip
    assert manifest["adapters"]["adapters"][0]["lineage"]["baseModel"] == "example/tiny"
    assert len(manifest["quantization"]["quantized"]) == 14
    assert "lm_head.weight" in manifest["quantization"]["kept"]
    assert {"configuration_harbour.py", "modeling_harbour.py"} <= {file["path"] for file in manifest["model"]["files"]}
    facts = manifest["runtime"]["facts"]
    assert facts["selfTest"]["result"] == "passed"
    assert facts["reading"]["bytes"] > 0
    assert {"cpuCapability", "blas"} <= facts["kernels"].keys()
    assert {"cores", "memoryBytes"} <= facts["topology"].keys()
    assert (manifest["engine"]["name"], manifest["servingFlags"]["flags"]["maxNumSeqs"]) == ("Torch", 16)


def other_adapter(release: Release) -> None:
    make_adapter(release.adapters["second"], release.model, seed=9)


def other_scale(release: Release) -> None:
    make_adapter(release.adapters["second"], release.model, seed=1, alpha=9)


def swap(release: Release) -> None:
    release.adapters = dict(reversed(release.adapters.items()))


def merge_twice(release: Release) -> None:
    release.adapters["again"] = make_adapter(release.folder / "again", release.model, seed=0)
    release.modes["again"] = "Merged"


def pickle_it(release: Release) -> None:
    (release.adapters["first"] / "adapter_model.safetensors").rename(release.adapters["first"] / "adapter_model.bin")


FAULTS: dict[str, tuple[Change, Reason, str]] = {
    "other adapter": (other_adapter, Reason.ADAPTER_MISMATCH, r"adapters\[second\]"),
    "other scale": (other_scale, Reason.ADAPTER_MISMATCH, r"adapters\[second\]"),
    "other order": (swap, Reason.ADAPTER_MISMATCH, "adapters"),
    "adapter missing": (lambda r: r.adapters.pop("second"), Reason.ADAPTER_MISMATCH, r"adapters\[second\]"),
    "merged twice": (merge_twice, Reason.ADAPTER_MISMATCH, "they would be merged twice"),
    "another mode": (lambda r: r.modes.update(first="Static"), Reason.ADAPTER_MISMATCH, "as Merged only"),
    "pickled adapter": (pickle_it, Reason.ADAPTER_MISMATCH, "can run code when read"),
    "not quantized": (lambda r: r.quantization.update(method="None"), Reason.QUANTIZATION_MISMATCH, "method"),
    "kept a layer": (
        lambda r: r.quantization.update(config={"keep": ["*.0.mlp.*"]}), Reason.QUANTIZATION_MISMATCH, "keep",
    ),
    "kept what is not there": (
        lambda r: r.quantization.update(config={"keep": ["*.9.mlp.*"]}), Reason.QUANTIZATION_MISMATCH,
        "which no linear layer matches",
    ),
    "unknown method": (lambda r: r.quantization.update(method="FP8"), Reason.QUANTIZATION_MISMATCH, "cannot compute"),
    "scales of its own": (
        lambda r: edit_config(r.model, quantization_config={"quant_method": "fp8"}), Reason.QUANTIZATION_MISMATCH, "fp8",
    ),
    "edited code": (
        lambda r: (r.model / "modeling_harbour.py").write_text(CODE["modeling_harbour.py"] + "# edited\n"),
        Reason.MODEL_MISMATCH, r"modeling_harbour\.py",
    ),
    "one code file more": (
        lambda r: (r.model / "extra.py").write_text("X = 1\n"), Reason.MODEL_MISMATCH, r"extra\.py",
    ),
    "code not trusted": (lambda r: setattr(r, "trust", False), Reason.MODEL_MISMATCH, "trustRemoteCode"),
}  # fmt: skip


@pytest.mark.req("R65", "R127", "R128")
@pytest.mark.parametrize("fault", FAULTS)
async def test_another_one_never_gets_ready(
    fault: str, record: ReleaseRecord, tiny_model_dir: Path, tmp_path: Path
) -> None:
    change, reason, sentence = FAULTS[fault]
    release = Release(tiny_model_dir, tmp_path / "pod")
    change(release)
    with serving(release.spec(record), start_engine=start_in_this_process) as (server, _):
        verdict = server.wait_verdict()
        assert (verdict["result"], verdict["reason"]) == ("Fail", reason), verdict["message"]
        told = json.dumps([verdict["message"], verdict["evidence"]])
        assert re.search(sentence, told), told
        assert server.probe("readyz")[0] == 503

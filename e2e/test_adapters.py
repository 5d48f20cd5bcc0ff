"""A merged adapter and int8 weights (some layers kept) in a real pod, recorded on a desk; another adapter never gets a request."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e import example
from e2e.cluster.lifecycle import Context
from e2e.conftest import Tiny, node_uri
from e2e.support import service
from e2e.support.kube import apply, condition, eventually
from pratique_contract.reasons import Reason
from pratique_contract.record import ReleaseRecord
from tests.support import models
from tests.support.adapters import make_adapter

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


def adapter(tiny: Tiny, name: str, *, seed: int) -> Path:
    """An adapter in the model cache, where the node sees it too."""
    folder = make_adapter(models.cache_dir() / "models" / "e2e-adapters" / name, tiny.folder, seed=seed)
    folder.chmod(0o755)
    for file in folder.iterdir():
        file.chmod(0o644)
    return folder


def adapted(tiny: Tiny, name: str, folder: Path, **release: Any) -> dict[str, Any]:
    model = {**tiny.service["spec"]["model"], "adapters": [{"name": "harbour", "uri": node_uri(folder)}]}
    quantization = {"method": "Int8WeightOnly", "config": {"keep": ["*.1.mlp.down_proj", "model.layers.0.*"]}}
    return tiny.manifest(name, model=model, quantization=quantization, release=release)


@pytest.mark.req("R62", "R64", "R65", "R127")
def test_the_recorded_adapter_serves_and_another_one_is_refused(
    context: Context, namespace: str, tiny: Tiny, tmp_path: Path
) -> None:
    approved, other = adapter(tiny, "approved", seed=0), adapter(tiny, "other", seed=1)
    manifest = tmp_path / "adapted.yaml"
    manifest.write_text(yaml.safe_dump(adapted(tiny, "adapted", approved)), encoding="utf-8")
    file = tmp_path / "record.json"
    example.pratique(
        "release", "record", "--service", str(manifest), "--model", str(tiny.folder),
        "--adapter", f"harbour={approved}", "--output", str(file),
    )  # fmt: skip
    record = ReleaseRecord.from_json(file.read_text(encoding="utf-8"))
    part = record.manifest.quantization
    assert {name.split(".")[2] for name in part.quantized} == {"1"}
    assert "model.layers.1.mlp.down_proj.weight" in part.kept
    release = {"fingerprint": record.fingerprint, "recordRef": {"name": "adapted-release"}}
    apply(
        tiny.record_map("adapted-release", record),
        adapted(tiny, "adapted", approved, **release),
        adapted(tiny, "other", other, **release),
        namespace=namespace,
    )
    service.wait_ready("adapted", namespace, timeout=420)
    case = record.golden.cases[0]
    with service.openai_client("adapted", namespace) as api:
        answer = api.chat.completions.create(
            model="tiny", messages=json.loads(json.dumps(case.messages)), max_tokens=case.max_tokens, temperature=0
        )
    assert answer.choices[0].message.content == case.outputs[0].text
    assert answer.system_fingerprint == record.fingerprint
    expected = str(Reason.ADAPTER_MISMATCH)
    eventually(lambda: service.reason_of("other", namespace) == expected, timeout=420, what=f"other says {expected}")
    ready = condition(service.read("other", namespace), "Ready")
    assert ready is not None
    assert "adapter_model.safetensors" in ready["message"]
    assert service.ready_endpoints("other", namespace) == []

"""A pod with any one wrong thing never becomes Ready, never gets a request, and the CR says which part is wrong.

All wrong services are applied at once and watched together: each case then looks at its own. The right one stands among
them, so a gate that refuses everything cannot pass.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from e2e.conftest import Tiny, node_uri
from e2e.support import service
from e2e.support.kube import apply, condition, eventually, get, kubectl, run_kubectl
from pratique_contract.golden import GoldenRecord
from pratique_contract.reasons import Reason
from pratique_contract.record import ReleaseRecord
from tests.support import models, mutations

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

NAMESPACE = "e2e-wrong-artefacts"


@dataclass(frozen=True)
class Case:
    """One wrong thing: what is replaced in the spec or the record, the reason and a word of the sentence the CR must give."""

    reason: Reason
    names: str
    spec: Callable[[Tiny], dict[str, Any]] = lambda _: {}
    record: Callable[[ReleaseRecord], ReleaseRecord] | None = None


def with_model(mutation: str) -> Callable[[Tiny], dict[str, Any]]:
    return lambda tiny: {"model": {"uri": node_uri(mutant(tiny, mutation)), "name": "tiny"}}


def with_tokenizer(mutation: str) -> Callable[[Tiny], dict[str, Any]]:
    return lambda tiny: {"tokenizer": {"uri": node_uri(mutant(tiny, mutation))}}


def with_engine(**changes: Any) -> Callable[[Tiny], dict[str, Any]]:
    return lambda tiny: {"engine": {**tiny.service["spec"]["engine"], **changes}}


def mutant(tiny: Tiny, mutation: str) -> Path:
    target = models.cache_dir() / "models" / "e2e-mutants" / mutation
    return mutations.copy_of(tiny.folder, target, mutations.FAULTS[mutation][0])


def alter_output(record: ReleaseRecord) -> ReleaseRecord:
    """Another last token in every golden case."""
    cases = []
    for case in record.golden.cases:
        outputs = tuple(
            output.model_copy(update={"ids": (*output.ids[:-1], (output.ids[-1] + 1) % 600)}) for output in case.outputs
        )
        cases.append(case.model_copy(update={"outputs": outputs}))
    return record.model_copy(update={"golden": record.golden.model_copy(update={"cases": tuple(cases)})})


def drop_cases(record: ReleaseRecord) -> ReleaseRecord:
    return record.model_copy(update={"golden": GoldenRecord(fixtures=record.golden.fixtures)})


def inline_template(tiny: Tiny) -> dict[str, Any]:
    return {"chatTemplate": {"inline": models.CHATML.replace("helpful", "helpfuI", 1)}}


CASES: dict[str, Case] = {
    "weight-byte": Case(Reason.MODEL_MISMATCH, "model.safetensors", with_model("weight-byte")),
    "tokenizer-revision": Case(Reason.TOKENIZER_MISMATCH, "tokenizer.json", with_tokenizer("tokenizer-revision")),
    "tokenizer-merge": Case(Reason.TOKENIZER_MISMATCH, "tokenizer.json", with_model("tokenizer-merge")),
    "template-character": Case(Reason.TEMPLATE_MISMATCH, "chatTemplate", inline_template),
    "eos-id": Case(Reason.SPECIAL_TOKENS_MISMATCH, "eosIds", with_model("eos-id")),
    "dtype": Case(Reason.QUANTIZATION_MISMATCH, "dtype", lambda _: {"quantization": {"dtype": "BF16"}}),
    "engine-flag": Case(Reason.FLAGS_MISMATCH, "maxBatchedTokens", with_engine(maxBatchedTokens=96)),
    "golden-altered": Case(Reason.OUTPUT_MISMATCH, "output token", record=alter_output),
    "golden-missing": Case(Reason.GOLDEN_MISSING, "golden", record=drop_cases),
}


@pytest.fixture(scope="module")
def wrong(tiny: Tiny) -> Iterator[str]:
    """Every case and the right one, applied together into a fresh namespace."""
    run_kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", timeout=120)
    kubectl("create", "namespace", NAMESPACE)
    manifests = [tiny.record_map("tiny-release"), tiny.manifest("right")]
    for name, case in CASES.items():
        changes = dict(case.spec(tiny))
        if case.record is not None:
            manifests.append(tiny.record_map(f"{name}-record", case.record(tiny.record)))
            changes["release"] = {**tiny.service["spec"]["release"], "recordRef": {"name": f"{name}-record"}}
        manifests.append(tiny.manifest(name, **changes))
    apply(*manifests, namespace=NAMESPACE)
    yield NAMESPACE
    kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def test_the_right_one_among_them_becomes_ready(wrong: str) -> None:
    service.wait_ready("right", wrong, timeout=420)
    with service.openai_client("right", wrong) as api:
        answer = api.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "Hello"}], max_tokens=4, temperature=0
        )
    assert answer.choices[0].finish_reason in ("stop", "length")


@pytest.mark.req("R126", "R127", "R128")
@pytest.mark.parametrize("name", CASES)
def test_a_wrong_artefact_is_refused_with_the_part_named(wrong: str, name: str) -> None:
    """LLMKube#1767, LLMKube#619: another artefact behind a green status."""
    case = CASES[name]
    expected = str(case.reason)
    try:
        eventually(lambda: service.reason_of(name, wrong) == expected, timeout=420, what=f"{name} says {expected}")
    except AssertionError as error:
        raise AssertionError(f"{error}\nstatus: {service.read(name, wrong).get('status')}") from error
    resource = service.read(name, wrong)
    ready, verified = condition(resource, "Ready"), condition(resource, "FingerprintVerified")
    assert ready is not None
    assert ready["status"] == "False"
    assert case.names in ready["message"]
    assert verified is not None
    assert verified["status"] == "False"
    (verdict,) = resource["status"]["verdicts"]
    assert (verdict["result"], verdict["reason"]) == ("Fail", expected)


@pytest.mark.req("R127")
@pytest.mark.parametrize("name", CASES)
def test_a_refused_pod_gets_no_request(wrong: str, name: str) -> None:
    eventually(lambda: service.reason_of(name, wrong) == str(CASES[name].reason), timeout=420, what="refused")
    assert service.ready_endpoints(name, wrong) == []
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
    with service.through_the_service(name, wrong) as http:
        assert http.post("/v1/chat/completions", json=body).status_code == 503
    (pod,) = get("pods", namespace=wrong, selector=f"serving.pratique.dev/service={name}")
    state = pod["status"]["containerStatuses"][0]
    assert (state["ready"], state["started"], state["restartCount"]) == (False, False, 0)
    assert "running" in state["state"]


def test_describe_shows_why(wrong: str) -> None:
    """kserve#4454, kaito#344: what a person sees first must say what is wrong."""
    name = "tokenizer-merge"

    def described(*what: str) -> Callable[[], str | None]:
        def look() -> str | None:
            text = kubectl("describe", "-n", wrong, *what)
            return text if "TokenizerMismatch" in text.partition("Events:")[2] else None

        return look

    eventually(described("psvc", name), timeout=420, what="an Event on the service with the reason")
    selector = f"serving.pratique.dev/service={name}"
    pod = eventually(described("pod", "-l", selector), timeout=120, what="an Event on the pod with the reason")
    assert "Startup probe failed" in pod

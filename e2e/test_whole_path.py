"""From ``kubectl apply`` to a verified, streamed answer: the real model, real pods, the official client."""

import pytest

from e2e import example
from e2e.support import service
from e2e.support.kube import condition, get, kubectl
from e2e.up import QUESTION

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]


@pytest.mark.real_model
@pytest.mark.req("R81", "R129", "R134")
def test_the_applied_example_streams_an_answer_of_the_approved_release() -> None:
    kubectl(
        "wait", "--for=condition=Ready", f"psvc/{example.NAME}", "-n", example.NAMESPACE, "--timeout=300s", timeout=310
    )
    resource = service.read(example.NAME, example.NAMESPACE)
    with service.openai_client(example.NAME, example.NAMESPACE) as api:
        chunks = list(
            api.chat.completions.create(
                model=example.NAME,
                messages=[{"role": "user", "content": QUESTION}],
                max_tokens=24,
                temperature=0,
                stream=True,
                stream_options={"include_usage": True},
            )
        )
        raw = api.chat.completions.with_raw_response.create(
            model=example.NAME, messages=[{"role": "user", "content": "Say yes."}], max_tokens=4, temperature=0
        )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    finishes = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices and chunk.choices[0].finish_reason]
    usage = chunks[-1].usage
    assert len(text.split()) > 3
    assert finishes in (["stop"], ["length"])
    assert usage is not None
    assert 0 < usage.completion_tokens <= 24
    approved = resource["spec"]["release"]["fingerprint"]
    assert {chunk.system_fingerprint for chunk in chunks} == {approved}
    assert raw.headers["x-pratique-fingerprint"] == approved
    assert resource["status"]["serving"]["fingerprint"] == approved


def test_columns_say_what_serves_before_what_is_wanted() -> None:
    header, row = kubectl("get", "psvc", example.NAME, "-n", example.NAMESPACE, "-o", "wide").splitlines()
    columns = header.split()
    assert columns[:4] == ["NAME", "READY", "REVISION", "CANDIDATE"]
    assert {"REPLICAS", "REASON", "FINGERPRINT", "AGE"} <= set(columns)
    status = service.read(example.NAME, example.NAMESPACE)["status"]
    assert row.split()[1:3] == ["True", status["serving"]["revision"]]
    assert status["serving"]["fingerprint"] in row


def test_every_pod_runs_restricted_and_offline() -> None:
    pods = get("pods", namespace=example.NAMESPACE, selector=f"serving.pratique.dev/service={example.NAME}")
    assert pods
    for pod in pods:
        container = pod["spec"]["containers"][0]
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
        assert pod["spec"]["automountServiceAccountToken"] is False
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert {"name": "HF_HUB_OFFLINE", "value": "1"} in container["env"]


def test_conditions_agree_with_each_other() -> None:
    resource = service.read(example.NAME, example.NAMESPACE)
    statuses = {
        kind: (condition(resource, kind) or {}).get("status") for kind in ("Ready", "Available", "FingerprintVerified")
    }
    assert statuses == {"Ready": "True", "Available": "True", "FingerprintVerified": "True"}

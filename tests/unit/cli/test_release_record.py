"""``pratique release record`` of a running service, against a scripted management port on a real socket."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

import pytest

from pratique_cli import kube, pod_records
from pratique_contract.canonical import digest_bytes
from pratique_contract.record import ReleaseRecord
from tests.support.gates import ServedPort, serving
from tests.support.releases import make_case, make_golden, make_output, make_record
from tests.unit.cli.conftest import Run

RECORD = make_record()
MADE = (200, RECORD.to_json())


def _say(status: int, message: str) -> tuple[int, str]:
    return status, json.dumps({"message": message})


@dataclass
class RecordPort:
    """Gives its answers one after the other, the last one for ever; remembers each request's body, or its query."""

    answers: list[tuple[int, str]]
    asked: list[tuple[str, str, bytes]] = field(default_factory=list)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body", False):
                break
        self.asked.append((scope["method"], scope["path"], body or unquote_to_bytes(scope["query_string"])))
        status, text = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": text.encode()})


@pytest.fixture(scope="module")
def port() -> Iterator[ServedPort]:
    with serving() as served:
        yield served


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_records, "POLL_SECONDS", 0.0)


def test_a_pod_is_asked_once_and_looked_at_until_its_record_is_there(pratique: Run, port: ServedPort) -> None:
    making = _say(202, "The record is being made: prompt 3 of 24, 1 clear cases found")
    app = RecordPort([_say(202, "The record is being made: ask again with GET"), making, making, MADE])
    port.app = app
    result = pratique("release", "record", "--url", port.url)
    assert (result.code, result.out) == (0, f"{RECORD.to_json()}\n"), result.err
    look = ("GET", "/record", f"of={digest_bytes(b'')}".encode())
    assert app.asked == [("POST", "/record", b""), *[look] * 3]
    assert result.err.count("prompt 3 of 24") == 1
    assert "ask again with GET" not in result.err
    assert f"Recorded release {RECORD.fingerprint}: 7 fixtures, 3 golden cases" in result.err


def test_a_record_to_extend_is_sent_and_the_rest_stays(pratique: Run, port: ServedPort, tmp_path: Path) -> None:
    base = tmp_path / "record.json"
    base.write_text(RECORD.to_json())
    case = make_case(outputs=(make_output(), make_output(device_class="cuda-sm90")))
    extended = RECORD.model_copy(update={"golden": make_golden(case)})
    app = RecordPort([(200, extended.to_json())])
    port.app = app
    result = pratique("release", "record", "--url", port.url, "--add-output", base, "--output", tmp_path / "new.json")
    assert result.code == 0, result.err
    assert app.asked == [("POST", "/record", RECORD.to_json().encode())]
    assert ReleaseRecord.from_json((tmp_path / "new.json").read_text()) == extended
    assert f"Added the outputs of FP32 on cuda-sm90 to release {RECORD.fingerprint}" in result.err


@pytest.mark.parametrize(
    ("answer", "code", "sentence"),
    [
        (_say(409, "No record can be made of this release: no clear case"), 1, "no clear case"),
        (_say(503, "Nothing is loaded yet"), 3, "Nothing is loaded yet"),
        ((404, "404: no such path or method\n"), 3, "The pod says 404: no such path or method"),
        ((200, "{}"), 3, "What the pod sent is no record"),
    ],
)
def test_a_pod_without_a_record_is_heard(
    answer: tuple[int, str], code: int, sentence: str, pratique: Run, port: ServedPort
) -> None:
    port.app = RecordPort([answer])
    result = pratique("release", "record", "--url", port.url)
    assert (result.code, result.out) == (code, "")
    assert sentence in result.err


def test_a_pod_that_is_restarted_meanwhile_is_told(pratique: Run, port: ServedPort) -> None:
    port.app = RecordPort(
        [_say(202, "The record is being made: ask again with GET"), _say(503, "Nothing is loaded yet")]
    )
    result = pratique("release", "record", "--url", port.url)
    assert (result.code, result.out) == (3, "")
    assert "restarted after startup.timeoutSeconds" in result.err


@pytest.mark.parametrize("name", ["service.yaml", "services/smollm2"])
def test_a_manifest_that_is_not_there_is_no_service(name: str, pratique: Run) -> None:
    result = pratique("release", "record", "--service", name)
    assert (result.code, f"There is no file {name}" in result.err) == (3, True)


def test_a_service_is_asked_through_the_api_server(pratique: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []

    class FakeCluster:
        namespace = "demo"

        def __init__(self, *, context: str | None) -> None:
            asked.append((context,))

        def any_pod(self, name: str, namespace: str) -> str:
            return f"{name}-abc-{namespace}"

        def request_pod(self, *arguments: Any) -> tuple[int, bytes]:
            asked.append(arguments)
            return 200, RECORD.to_json().encode()

    monkeypatch.setattr(kube, "Cluster", FakeCluster)
    result = pratique("release", "record", "--service", "smollm2", "-n", "prod", "--format", "configmap")
    assert result.code == 0, result.err
    assert asked == [(None,), ("smollm2-abc-prod", 8001, "prod", "POST", "/record", b"")]
    assert "name: smollm2-release" in result.out
    assert "Asking pod prod/smollm2-abc-prod" in result.err


def test_options_that_contradict_each_other_are_usage_errors(pratique: Run, tmp_path: Path) -> None:
    manifest = tmp_path / "service.yaml"
    manifest.write_text("kind: InferenceService\n")
    for arguments in (
        ("--url", "http://127.0.0.1:9", "--model", tmp_path),
        ("--model", tmp_path, "--namespace", "demo"),
        ("--service", manifest),
    ):
        assert pratique("release", "record", *arguments).code == 2


def test_a_port_that_does_not_answer_is_a_sentence(pratique: Run) -> None:
    result = pratique("release", "record", "--url", "http://127.0.0.1:9")
    assert (result.code, "http://127.0.0.1:9 does not answer" in result.err) == (3, True)

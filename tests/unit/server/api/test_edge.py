"""What holds for every request: who may ask, in which order things are refused, ids, headers, the access line, the counts."""

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from pratique_contract import Reason, Verdict, VerdictResult
from pratique_server.api import auth
from pratique_server.api.auth import ApiKeys
from pratique_server.api.state import EngineSlot
from pratique_server.config import ApiLimits
from pratique_server.engine.protocol import EngineDeadError, EngineOverloadedError, FinishReason, StepEvent
from pratique_server.management.status import EngineReport
from tests.unit.server.scripted import (
    FINGERPRINT,
    PROBE_TOKEN,
    Api,
    RawExchange,
    chat_body,
    events_of,
    eventually,
    idle_stats,
    make_api,
)


def keys(folder: Path, **tenants: str) -> ApiKeys:
    for tenant, key in tenants.items():
        (folder / tenant).write_text(f"{key}\n")
    return ApiKeys(folder)


def fail_verdict(api: Api) -> None:
    api.verdicts.verdict = Verdict(result=VerdictResult.FAIL, reason=Reason.TOKENIZER_MISMATCH, message="differs")


async def code_of(api: Api, body: Any, **headers: str) -> tuple[int, str]:
    response = await api.post("/v1/chat/completions", body, **headers)
    return response.status_code, response.json().get("error", {}).get("code", "ok")


@pytest.mark.req("R1", "R10")
async def test_cheap_and_decisive_checks_come_first(tmp_path: Path) -> None:
    """One request with every fault; each fix uncovers the next refusal, in the order of the design."""
    api = make_api(keys=keys(tmp_path, harbour="right"), template="{{ messages[0].missing.field }}")
    api.state.status.refusing = True
    fail_verdict(api)
    body = chat_body(model="other", temperature=9)
    order = [await code_of(api, body, **{"x-request-id": "x" * 200})]
    order.append(await code_of(api, body))
    headers = {"authorization": "Bearer right"}
    order.append(await code_of(api, body, **headers))
    api.state.status.refusing = False
    api.state.status.engine_up = False
    order.append(await code_of(api, body, **headers))
    api.state.status.engine_up = True
    order.append(await code_of(api, body, **headers))
    api.verdicts.verdict = Verdict(result=VerdictResult.PASS, reason=Reason.VERIFIED, message="")
    order.append(await code_of(api, body, **headers))
    body["model"] = "harbour"
    order.append(await code_of(api, body, **headers))
    body["temperature"] = 1
    order.append(await code_of(api, body, **headers))
    assert order == [
        (400, "invalid_request"),
        (401, "invalid_api_key"),
        (503, "draining"),
        (503, "engine_unavailable"),
        (503, "not_ready"),
        (404, "model_not_found"),
        (400, "invalid_request"),
        (400, "template_error"),
    ]
    assert api.engine.requests == []


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize", "/detokenize", "/render", "/nowhere"])
@pytest.mark.req("R1")
async def test_every_route_authenticates(path: str, tmp_path: Path) -> None:
    api = make_api(keys=keys(tmp_path, harbour="right"))
    for headers in (
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": "Basic right"},
        {"authorization": "right"},
    ):
        response = await api.post(path, {}, **headers)
        assert (response.status_code, response.json()["error"]["code"]) == (401, "invalid_api_key")
        assert response.headers["www-authenticate"] == "Bearer"
        assert response.headers["x-should-retry"] == "false"
    async with api.client() as client:
        assert (await client.get("/v1/models")).status_code == 401
        assert (await client.get("/v1/models/harbour")).status_code == 401


@pytest.mark.req("R25")
async def test_the_key_decides_the_tenant(tmp_path: Path) -> None:
    api = make_api(keys=keys(tmp_path, harbour="key-1", pilot="key-2"))
    await api.chat(authorization="Bearer key-2")
    assert api.engine.requests[0].tenant == "pilot"


@pytest.mark.parametrize(
    ("text", "tenants"),
    [
        ("k1\nk2\n", {"k1": "default", "k2": "default"}),
        ('{"a": "k1", "b": ["k2", "k3"]}', {"k1": "a", "k2": "b", "k3": "b"}),
        ("", {}),
        ("{broken", {}),
        ('{"a": 3}', {}),
    ],
)
def test_reads_keys_from_a_file(tmp_path: Path, text: str, tenants: dict[str, str]) -> None:
    file = tmp_path / "keys"
    file.write_text(text)
    known = ApiKeys(file)
    found = {key: known.tenant_of(key) for key in ("k1", "k2", "k3", "", "{broken", "other")}
    assert {key: tenant for key, tenant in found.items() if tenant} == tenants


def test_reads_keys_again_when_a_mounted_secret_changes(tmp_path: Path) -> None:
    """openrag#985: a rotated Secret was not seen. The kubelet swaps a link to a new folder."""
    now = [0.0]
    for version, key in (("v1", "old"), ("v2", "new")):
        (tmp_path / version).mkdir()
        (tmp_path / version / "harbour").write_text(key)
    (tmp_path / "..data").symlink_to("v1")
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    (mounted / "harbour").symlink_to(tmp_path / "..data" / "harbour")
    known = ApiKeys(mounted, clock=lambda: now[0])
    assert (known.tenant_of("old"), known.tenant_of("new")) == ("harbour", None)
    (tmp_path / "..data").unlink()
    (tmp_path / "..data").symlink_to("v2")
    now[0] += auth.RELOAD_SECONDS
    assert (known.tenant_of("old"), known.tenant_of("new")) == (None, "harbour")
    (mounted / "harbour").unlink()
    now[0] += auth.RELOAD_SECONDS
    assert known.tenant_of("new") is None


async def test_the_gates_token_opens_a_pod_that_is_not_verified_and_only_that_token(tmp_path: Path) -> None:
    api = make_api(keys=keys(tmp_path, harbour="right"))
    fail_verdict(api)
    assert (await api.chat(authorization="Bearer right")).status_code == 503
    assert (await api.chat(**{"x-pratique-probe": "guess"})).status_code == 401
    response = await api.chat(**{"x-pratique-probe": PROBE_TOKEN})
    assert response.status_code == 200
    request = api.engine.requests[0]
    assert request.reserved
    assert request.cache_salt != ""
    assert b'ending="stop"' not in api.state.metrics.exposition(), "the gate's own requests are not counted"


async def test_clients_cannot_reserve_or_choose_a_cache_salt() -> None:
    """vllm PR#53347: a salt that clients choose isolates nobody."""
    api = make_api()
    await api.chat({"cache_salt": "mine"})
    assert (api.engine.requests[0].reserved, api.engine.requests[0].cache_salt) == (False, "")


async def test_a_silent_engine_is_not_asked() -> None:
    api = make_api()
    loop_time = asyncio.get_running_loop().time()
    api.state.status.report = EngineReport(stats=idle_stats(heartbeat_age_seconds=100.0), read_at=loop_time)
    assert await code_of(api, chat_body()) == (503, "engine_unavailable")
    api.state.status.report = EngineReport(stats=idle_stats(), read_at=loop_time)
    api.state.engine = EngineSlot(None)
    assert await code_of(api, chat_body()) == (503, "engine_unavailable")


async def test_every_answer_names_request_contract_and_fingerprint() -> None:
    api = make_api()
    answers = [
        await api.chat(),
        await api.chat({"stream": True}),
        await api.chat({"temperature": 9}),
        await api.post("/nowhere", {}),
        await api.post("/render", {"messages": [{"role": "user", "content": "Hi"}]}),
    ]
    for response in answers:
        assert response.headers["x-pratique-fingerprint"] == FINGERPRINT
        assert response.headers["x-pratique-contract"] == "1"
        assert response.headers["x-request-id"].startswith("req-")
    assert len({response.headers["x-request-id"] for response in answers}) == len(answers)
    assert (await api.chat(**{"x-request-id": "voyage 7"})).headers["x-request-id"] == "voyage 7"


@pytest.mark.parametrize("value", ["", "x" * 129])
async def test_a_request_id_that_cannot_be_echoed_is_refused(value: str) -> None:
    response = await make_api().chat(**{"x-request-id": value})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "x-request-id")


@pytest.mark.req("R24")
async def test_a_live_request_id_is_refused_until_its_request_ends() -> None:
    """vllm#10583, rllm#330."""
    hold = asyncio.Event()
    api = make_api([*events_of("ab")[:1], hold, *events_of("c")])
    first = asyncio.create_task(api.chat(**{"x-request-id": "twice"}))
    await eventually(lambda: len(api.engine.live) == 1)
    second = await api.chat(**{"x-request-id": "twice"})
    assert (second.status_code, second.json()["error"]["code"]) == (409, "duplicate_request")
    assert second.headers["x-should-retry"] == "false"
    hold.set()
    assert (await first).status_code == 200
    assert (await api.chat(**{"x-request-id": "twice"})).status_code == 200


async def test_another_model_revision_is_a_failed_precondition() -> None:
    api = make_api()
    assert await code_of(api, chat_body(), **{"x-pratique-model-revision": "other"}) == (412, "revision_mismatch")
    assert await code_of(api, chat_body(), **{"x-pratique-model-revision": "model-revision"}) == (200, "ok")


@pytest.mark.req("R19", "R107")
async def test_requests_over_the_number_in_flight_are_told_to_come_back() -> None:
    hold = asyncio.Event()
    api = make_api([hold, *events_of("a")], limits=ApiLimits(in_flight_max=2))
    waiting = [asyncio.create_task(api.chat()) for _ in range(2)]
    await eventually(lambda: len(api.engine.live) == 2)
    response = await api.chat()
    assert (response.status_code, response.json()["error"]["code"]) == (429, "queue_full")
    assert response.headers["retry-after"] == "1"
    assert response.headers["retry-after-ms"] == "1000"
    hold.set()
    assert [(await task).status_code for task in waiting] == [200, 200]


async def test_models_are_listed_with_their_identity() -> None:
    api = make_api()
    async with api.client() as client:
        listed = (await client.get("/v1/models")).json()
        one = (await client.get("/v1/models/harbour")).json()
        missing = await client.get("/v1/models/org/other")
    assert listed == {"object": "list", "data": [one]}
    assert (one["id"], one["fingerprint"], one["max_model_len"]) == ("harbour", FINGERPRINT, 512)
    assert missing.json()["error"]["code"] == "model_not_found"


@pytest.mark.req("R30")
async def test_the_defaults_of_the_release_apply_when_the_caller_is_silent() -> None:
    api = make_api(
        defaults={"temperature": 0.6, "top_k": 20, "top_p": 0.9, "repetition_penalty": 1.1, "do_sample": True}
    )
    await api.chat()
    await api.chat({"temperature": 0, "top_k": -1, "top_p": 1, "seed": -1, "logit_bias": {"5": -3}})
    silent, asked = (request.sampling for request in api.engine.requests)
    assert (silent.temperature, silent.top_k, silent.top_p, silent.repetition_penalty) == (0.6, 20, 0.9, 1.1)
    assert (asked.temperature, asked.top_k, asked.top_p, asked.repetition_penalty) == (0.0, 0, 1.0, 1.1)
    assert (silent.seed, asked.seed) == (None, 2**64 - 1)
    assert asked.logit_bias == {5: -3.0}


async def test_stop_ids_limits_and_flags_reach_the_engine() -> None:
    api = make_api(context_limit=100)
    await api.chat({"stop_token_ids": [7, 9], "max_completion_tokens": 11, "min_tokens": 3, "temperature": 1e-9})
    await api.chat({"ignore_eos": True, "stop_token_ids": [7]})
    first, second = api.engine.requests
    assert (first.stop_token_ids, first.max_new_tokens, first.min_tokens) == ([7, 9, 256], 11, 3)
    assert first.sampling.temperature == 0.0
    assert second.stop_token_ids == [7]
    assert second.max_new_tokens == 100 - len(second.prompt_ids)


def access_lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [record.fields for record in caplog.records if record.name == "pratique.access"]  # type: ignore[attr-defined]


@pytest.mark.req("R100")
async def test_the_five_endings_are_distinct_in_log_and_metrics(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    limit = [StepEvent(request_id="", token_ids=[65], finish=FinishReason.LENGTH)]
    scripts: dict[str, Any] = {
        "stop": events_of("ab"),
        "limit": limit,
        "rejected": [EngineOverloadedError("full")],
        "failed": [*events_of("ab")[:1], EngineDeadError("gone")],
    }
    for script in scripts.values():
        await make_api(script).chat({"stream": True})
    api = make_api([*events_of("ab")[:1], asyncio.Event()])
    exchange = RawExchange(api, json.dumps(chat_body(stream=True)).encode())
    running = asyncio.create_task(exchange.run())
    await eventually(lambda: len(exchange.sent) > 1)
    exchange.disconnect()
    await running
    lines = access_lines(caplog)
    assert [line["ending"] for line in lines] == [*scripts, "cancelled"]
    assert [line["error_code"] for line in lines] == [None, None, "queue_full", "engine_unavailable", "client_closed"]
    assert [line["disconnect"] for line in lines] == [False] * 4 + [True]
    text = api.state.metrics.exposition().decode()
    assert 'pratique_requests_total{code="client_closed",ending="cancelled"} 1.0' in text


@pytest.mark.req("R67", "R113", "R129")
async def test_the_access_line_has_counts_and_times_and_never_content_or_keys(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.DEBUG)
    api = make_api(events_of("the-answer"), keys=keys(tmp_path, harbour="the-key"))
    body = {"messages": [{"role": "user", "content": "the-question"}], "seed": 7, "temperature": 0.5, "max_tokens": 50}
    await api.chat(body, authorization="Bearer the-key")
    (line,) = access_lines(caplog)
    assert (line["tenant_id"], line["seed"], line["max_new_tokens"], line["finish_reason"]) == (
        "harbour",
        7,
        50,
        "stop",
    )
    assert line["output_tokens"] == len("the-answer") + 1
    assert line["fingerprint"] == FINGERPRINT
    assert line["ttft_ms"] <= line["duration_ms"]
    assert line["timestamps_ms"]["cleaned_up"] is not None
    everything = json.dumps(line) + caplog.text
    assert not any(secret in everything for secret in ("the-answer", "the-question", "the-key"))


async def test_a_large_expected_body_is_not_asked_for_when_it_is_refused() -> None:
    api = make_api()
    fail_verdict(api)
    exchange = RawExchange(api, b"x" * 10, headers={"expect": "100-continue"})
    await exchange.run()
    start = exchange.sent[0]
    assert start["status"] == 503
    assert (b"connection", b"close") in start["headers"]


async def test_a_request_with_two_lengths_is_the_last_of_its_connection() -> None:
    """Request smuggling: what a proxy takes for the end of this request may be the middle of it here."""
    api = make_api(events_of("ab"))
    assert (await api.chat({}, **{"transfer-encoding": "chunked"})).headers["connection"] == "close"
    assert "connection" not in (await api.chat()).headers

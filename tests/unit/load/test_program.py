"""``python -m bench.load``: what it takes and what it prints, against a scripted server on a real socket."""

import argparse
import json
import sys
from typing import Any

import pytest

from bench.load.__main__ import main, parse_tenant
from tests.support.gates import serving
from tests.unit.load.test_client import Server

OPTIONS = argparse.Namespace(arrival="Constant")


@pytest.mark.parametrize(
    ("text", "rate", "words", "tokens"),
    [("light:2", 2.0, 24, 24), ("light:0.5:100", 0.5, 100, 24), ("light:4:100:7", 4.0, 100, 7)],
)
def test_a_tenant_is_a_name_a_rate_and_lengths(text: str, rate: float, words: int, tokens: int) -> None:
    tenant = parse_tenant(text, OPTIONS)
    assert (tenant.name, tenant.rate, tenant.arrival) == ("light", rate, "Constant")
    assert (tenant.prompt_words, tenant.max_tokens) == ((words, words), (tokens, tokens))


@pytest.mark.parametrize("text", ["light", ":2", "light:fast", "light:1:2:3:4", "light:1:2:x"])
def test_what_is_no_tenant_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not NAME:RATE"):
        parse_tenant(text, OPTIONS)


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    monkeypatch.setattr(sys, "argv", ["bench.load", *arguments])
    code = main()
    out = capsys.readouterr().out
    return code, json.loads(out) if out else None


@pytest.mark.req("R129")
def test_the_document_says_under_which_conditions_its_figures_were_taken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(Server()) as served:
        arguments = (
            "--url",
            served.url,
            "--model",
            "tiny",
            "--seconds",
            "0.2",
            "--tenant",
            "light:20:5:9",
            "--seed",
            "4",
        )
        code, value = run(monkeypatch, capsys, *arguments, "--arrival", "Constant")
    assert code == 0
    assert value["requests"] == 4
    conditions = value["conditions"]
    assert (conditions["seed"], conditions["arrival"], conditions["fingerprints"]) == (4, "Constant", ["f"])
    assert conditions["tenants"] == [{"name": "light", "rate": 20.0, "promptWords": [5, 5], "maxTokens": [9, 9]}]


def test_requests_that_fail_end_with_1_and_a_server_that_is_not_there_with_3(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(Server('{"error": {"code": "queue_full"}}', status=429)) as served:
        code, value = run(
            monkeypatch, capsys, "--url", served.url, "--model", "tiny", "--rate", "20", "--seconds", "0.2"
        )
    assert (code, value["errorRate"]) == (1, 1.0)
    assert run(monkeypatch, capsys, "--url", "http://127.0.0.1:9") == (3, None)
    assert run(monkeypatch, capsys, "--url", "http://127.0.0.1:9", "--tenant", "nobody") == (2, None)

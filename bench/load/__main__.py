"""``python -m bench.load --url http://127.0.0.1:8000 --rate 2 --seconds 30``: one run, one JSON document on standard output.

Tenants are given as ``NAME:RATE[:PROMPT_WORDS[:MAX_TOKENS]]``; without any there is one, with ``--rate``. The document says under which
conditions the figures were taken, since they mean nothing without.
"""

import argparse
import asyncio
import json
import os
import platform
import sys
from datetime import UTC, datetime
from typing import Any

import httpx

from pratique_cli.load import Slo, Target, Tenant, make_trace, measure, run_trace
from pratique_contract.constants import MODELS_PATH

# Words of a prompt and tokens of an answer, when a tenant names none.
DEFAULT_LENGTHS = ("24", "24")


def main() -> int:
    """0 when every request ended well, 1 when one did not, 3 when the server cannot be asked."""
    options = parse_options()
    try:
        tenants = tuple(parse_tenant(text, options) for text in options.tenant or [f"default:{options.rate}"])
        trace = make_trace(tenants, seconds=options.seconds, seed=options.seed)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    try:
        model = options.model or first_model(options.url)
    except (httpx.HTTPError, ValueError, LookupError) as error:
        print(f"error: {options.url} does not list its models: {error}", file=sys.stderr)
        return 3
    print(f"Sending {len(trace)} requests over {options.seconds:g} s to {options.url} ({model})", file=sys.stderr)
    body = {"temperature": 0, **({"ignore_eos": True} if options.ignore_eos else {})}
    observed = asyncio.run(run_trace(trace, Target(url=options.url, model=model, body=body)))
    slo = Slo(ttft_ms=options.slo_ttft_ms, tpot_ms=options.slo_tpot_ms, e2e_ms=options.slo_e2e_ms)
    conditions = describe_conditions(options, tenants, model)
    fingerprints = sorted({seen.fingerprint for seen in observed if seen.fingerprint})
    figures = measure(observed, slo=slo)
    print(json.dumps({"conditions": {**conditions, "fingerprints": fingerprints}, **figures}, indent=2))
    return 1 if figures["errors"] else 0


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.load", description="Open-loop load on an OpenAI-compatible server."
    )
    parser.add_argument("--url", required=True, help="base URL, without /v1")
    parser.add_argument("--model", help="served model name; default: the first that the server lists")
    parser.add_argument("--rate", type=float, default=1.0, help="requests per second of the only tenant")
    parser.add_argument("--tenant", action="append", metavar="NAME:RATE[:WORDS[:TOKENS]]", help="may be repeated")
    parser.add_argument("--arrival", choices=("Poisson", "Constant"), default="Poisson")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ignore-eos", action="store_true", help="make every answer as long as it may be")
    parser.add_argument("--slo-ttft-ms", type=float)
    parser.add_argument("--slo-tpot-ms", type=float)
    parser.add_argument("--slo-e2e-ms", type=float)
    return parser.parse_args()


def parse_tenant(text: str, options: argparse.Namespace) -> Tenant:
    """Raises ``ValueError`` with the text that is no tenant. The key of a tenant comes from ``PRATIQUE_API_KEY_<NAME>``."""
    name, *numbers = text.split(":")
    if not name or not 1 <= len(numbers) <= 3:
        raise ValueError(f"{text!r} is not NAME:RATE[:WORDS[:TOKENS]]")
    rate, words, tokens = [*numbers, *DEFAULT_LENGTHS[len(numbers) - 1 :]]
    try:
        lengths = {"prompt_words": (int(words), int(words)), "max_tokens": (int(tokens), int(tokens))}
        return Tenant(name=name, rate=float(rate), arrival=options.arrival, api_key=_key_of(name), **lengths)
    except ValueError as error:
        raise ValueError(f"{text!r} is not NAME:RATE[:WORDS[:TOKENS]]") from error


def _key_of(tenant: str) -> str | None:
    return os.environ.get(f"PRATIQUE_API_KEY_{tenant.upper()}") or os.environ.get("PRATIQUE_API_KEY")


def first_model(url: str) -> str:
    key = os.environ.get("PRATIQUE_API_KEY")
    headers = {"authorization": f"Bearer {key}"} if key else {}
    answer = httpx.get(f"{url}{MODELS_PATH}", headers=headers, trust_env=False, timeout=10)
    answer.raise_for_status()
    return str(answer.json()["data"][0]["id"])


def describe_conditions(options: argparse.Namespace, tenants: tuple[Tenant, ...], model: str) -> dict[str, Any]:
    return {
        "takenAt": datetime.now(UTC).isoformat(timespec="seconds"),
        "url": options.url,
        "model": model,
        "arrival": options.arrival,
        "seconds": options.seconds,
        "seed": options.seed,
        "ignoreEos": options.ignore_eos,
        "tenants": [
            {"name": t.name, "rate": t.rate, "promptWords": t.prompt_words, "maxTokens": t.max_tokens} for t in tenants
        ],
        "client": {"python": platform.python_version(), "machine": platform.machine(), "processors": os.cpu_count()},
        "loadAverage": os.getloadavg()[0],
    }


if __name__ == "__main__":
    sys.exit(main())

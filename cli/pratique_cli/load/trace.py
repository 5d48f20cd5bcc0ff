"""Which request is sent when: decided before the first one is, from a seed. Pure.

Each tenant has an arrival process of its own: ``Poisson`` draws exponential gaps of mean 1/rate, ``Constant`` sends every 1/rate seconds.
The same seed gives the same trace, so that two servers, or one server at two times, get the same work.
"""

import random
from dataclasses import dataclass
from typing import Any, Final, Literal

REQUESTS_MAX: Final = 100_000

# Ordinary words: a prompt of n of them has about n tokens in most vocabularies.
_WORDS: Final = (
    "harbour pilot anchor tide storm captain flag crew signal buoy lantern rope mast sail compass chart cargo port wind wave "
    "night morning letter story question answer number river bridge tower garden window market music winter summer engine"
)


@dataclass(frozen=True, kw_only=True)
class Tenant:
    """One caller: how often it asks, how much, and with which key. ``prompt_words`` and ``max_tokens`` are drawn from their ranges."""

    name: str
    rate: float
    prompt_words: tuple[int, int] = (16, 32)
    max_tokens: tuple[int, int] = (16, 32)
    arrival: Literal["Poisson", "Constant"] = "Poisson"
    api_key: str | None = None


@dataclass(frozen=True, kw_only=True)
class Planned:
    """One request of the trace: ``at`` seconds after the start."""

    at: float
    tenant: Tenant
    number: int
    messages: tuple[dict[str, Any], ...]
    max_tokens: int


def make_trace(tenants: tuple[Tenant, ...], *, seconds: float, seed: int) -> tuple[Planned, ...]:
    """Every request that is due before ``seconds``, in order of time. Raises ``ValueError`` for a rate or a length that makes none."""
    if not seconds > 0 or not all(tenant.rate > 0 for tenant in tenants):
        raise ValueError("A trace needs a positive duration and positive rates")
    if sum(tenant.rate for tenant in tenants) * seconds > REQUESTS_MAX:
        raise ValueError(f"A trace of more than {REQUESTS_MAX} requests is asked for")
    # A generator for each tenant: another tenant more or less does not change what this one sends.
    planned = [item for tenant in tenants for item in _plan(tenant, seconds, random.Random(f"{seed}/{tenant.name}"))]  # noqa: S311
    return tuple(sorted(planned, key=lambda item: (item.at, item.tenant.name)))


def _plan(tenant: Tenant, seconds: float, draw: random.Random) -> list[Planned]:
    planned: list[Planned] = []
    at = 0.0 if tenant.arrival == "Constant" else draw.expovariate(tenant.rate)
    while at < seconds:
        words = draw.choices(_WORDS.split(), k=draw.randint(*tenant.prompt_words))
        # The number makes each prompt begin alike nowhere: a prefix cache must not decide what is measured.
        text = f"{draw.randrange(10**6)}: tell a long story with these words: {' '.join(words)}"
        planned.append(
            Planned(
                at=at,
                tenant=tenant,
                number=len(planned),
                messages=({"role": "user", "content": text},),
                max_tokens=draw.randint(*tenant.max_tokens),
            )
        )
        at = len(planned) / tenant.rate if tenant.arrival == "Constant" else at + draw.expovariate(tenant.rate)
    return planned

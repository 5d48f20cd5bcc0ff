"""Builders for what a review compares: greedy answers, renderings."""

from typing import Any

from pratique_server.review.capture import Answer


def make_answer(name: str = "p", *ids: int, **fields: Any) -> Answer:
    chosen = ids or (5, 6, 7, 8)
    defaults: dict[str, Any] = {
        "name": name,
        "prompt_ids": (1, 2),
        "ids": chosen,
        "margins": (2.0,) * len(chosen),
        "text": " ".join(map(str, chosen)),
        "stopped": False,
    }
    return Answer(**{**defaults, **fields})

"""What both releases are asked: the built-in prompts, or a file of the user's own. Plain data; its digest is kept with the result."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from pratique_contract.canonical import digest_json
from pratique_server.release.prompts import Messages
from pratique_server.review.errors import ReviewError

OUTPUT_TOKENS_MAX: Final = 32
PROMPTS_MAX: Final = 512
NAME_LENGTH: Final = 32


@dataclass(frozen=True, kw_only=True)
class PromptSet:
    """Conversations by name, and how many tokens each answer may have."""

    prompts: tuple[tuple[str, Messages], ...]
    max_tokens: int = OUTPUT_TOKENS_MAX

    @property
    def digest(self) -> str:
        return digest_json([[name, list(messages)] for name, messages in self.prompts])


def _ask(*texts: str) -> tuple[tuple[str, Messages], ...]:
    return tuple(
        (_name(number, text), ({"role": "user", "content": text},)) for number, text in enumerate(texts, start=1)
    )


def _name(number: int, text: str) -> str:
    """A name a person recognizes in a table, and that no other prompt has."""
    return f"{number:02d} {text[:NAME_LENGTH]}"


# Forced answers beside open ones: recitation shows a broken model, open text shows where two good ones part.
BUILT_IN: Final = PromptSet(
    prompts=_ask(
        "Count from 1 to 20, separated by commas.",
        "List the twelve months of the year in order.",
        "Repeat exactly: The ship entered the harbour at dawn.",
        "What is 2 + 2? Answer with one number only.",
        "Which city is the capital of Italy? Answer with one word.",
        "Translate into French: good morning.",
        'Return exactly this JSON and nothing else: {"port": 8000, "ready": true}',
        "Write a Python function that adds two numbers.",
        "Complete the proverb: An apple a day keeps the",
        "What is a lighthouse for?",
        "Explain in one sentence why the sky is blue.",
        "Name three animals that live in the sea.",
        "Write a short poem about the wind.",
        "How do I boil an egg?",
        "What is the difference between a list and a tuple in Python?",
        "Summarize in five words: The storm kept every ship in port for a week.",
        "Is 17 a prime number? Explain briefly.",
        "Give me a title for a story about a lost key.",
        "Who wrote Romeo and Juliet?",
        "Convert 10 kilometres to miles.",
        "What should I pack for a weekend at the coast?",
        "Correct the grammar: She go to school yesterday.",
        "Describe a harbour at night.",
        "Wie heißt die Hauptstadt von Deutschland?",
    )
)


def parse_prompts(text: str, *, max_tokens: int = OUTPUT_TOKENS_MAX) -> PromptSet:
    """One JSON value a line: a string (a user's message) or an object with ``messages`` and perhaps a ``name``."""
    lines = [line for line in text.splitlines() if line.strip()]
    if not 1 <= len(lines) <= PROMPTS_MAX:
        raise ReviewError(f"The prompts file has {len(lines)} lines; 1 to {PROMPTS_MAX} are asked")
    prompts = tuple(_parse_line(number, line) for number, line in enumerate(lines, start=1))
    if len({name for name, _ in prompts}) != len(prompts):
        raise ReviewError("The prompts file gives one name twice")
    return PromptSet(prompts=prompts, max_tokens=max_tokens)


def _parse_line(number: int, line: str) -> tuple[str, Messages]:
    try:
        value: Any = json.loads(line)
    except ValueError as error:
        raise ReviewError(f"Line {number} of the prompts file is not JSON: {error}") from error
    if isinstance(value, str):
        return _name(number, value), ({"role": "user", "content": value},)
    messages = value.get("messages") if isinstance(value, dict) else None
    if not isinstance(messages, Sequence) or not messages or not all(isinstance(item, dict) for item in messages):
        raise ReviewError(f"Line {number} of the prompts file is neither a string nor an object with messages")
    return str(value.get("name") or _name(number, "conversation")), tuple(messages)

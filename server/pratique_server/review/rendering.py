"""RenderedFixtures: the same conversations through both templates and tokenizers, text and ids. Pure.

A changed rendering is no failure by itself: somebody changed the template or the tokenizer, on purpose or not, and only a person can say
which. The test *passes* when that person can: every change is shown (``changesDigest`` ties the review to exactly what was shown), and
nothing is wrong that no purpose explains:

* ``unlikeRecord``: what the candidate renders is what its own record says;
* ``refused``: no conversation that the reference renders is refused;
* ``contentLost``: no message that the reference's text contains is missing from the candidate's;
* ``doubledBos``: no prompt begins with two BOS where the reference's has one (vllm#2012);
* ``unexplained``: text changes only when template, special tokens or tokenizer differ, and ids of an unchanged text only when special
  tokens or tokenizer do.
"""

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from pratique_contract.canonical import digest_json
from pratique_contract.model import ContractModel
from pratique_contract.record import ReleaseRecord
from pratique_server.errors import TemplateError
from pratique_server.gate.differences import first_difference, show_ids
from pratique_server.release.prompts import FIXTURES, TOOLS
from pratique_server.review.parity import Figures

CONTEXT_LINES: Final = 1

Message = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """Something to render, by the name a person knows it by."""

    name: str
    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...] | None = None

    @property
    def key(self) -> str:
        return digest_json([list(self.messages), None if self.tools is None else list(self.tools)])


@dataclass(frozen=True, kw_only=True)
class Rendering:
    """What came out; ``refusal`` is the template's sentence when nothing did."""

    text: str = ""
    ids: tuple[int, ...] = ()
    refusal: str | None = None

    def is_like(self, other: "Rendering") -> bool:
        """What a template says when it refuses is for people; that it refuses is what counts."""
        both_refuse = self.refusal is not None and other.refusal is not None
        return both_refuse or self == other


Render = Callable[[Conversation], Rendering | None]


class RenderingChange(ContractModel):
    """One conversation that is rendered otherwise: the lines that differ, or where the ids part."""

    name: str
    kind: Literal["text", "ids", "refused", "accepted"]
    message: str
    lines: tuple[str, ...] = ()


def conversations_of(*records: ReleaseRecord | None) -> list[Conversation]:
    """What the records rendered and the built-in fixtures, each once."""
    found: dict[str, Conversation] = {}
    for record in records:
        if record is None:
            continue
        for fixture in record.golden.fixtures:
            _add(found, Conversation(name=fixture.name, messages=fixture.messages, tools=fixture.tools))
        for refused in record.golden.refused:
            _add(found, Conversation(name=refused.name, messages=refused.messages, tools=refused.tools))
        for case in record.golden.cases:
            _add(found, Conversation(name=f"case {case.name}", messages=case.messages))
    for name, messages, with_tools in FIXTURES:
        _add(found, Conversation(name=name, messages=messages, tools=TOOLS if with_tools else None))
    return list(found.values())


def _add(found: dict[str, Conversation], conversation: Conversation) -> None:
    found.setdefault(conversation.key, conversation)


def recorded_renderings(record: ReleaseRecord) -> dict[str, Rendering]:
    """What the record says, by the conversation's key."""
    renderings = {}
    for fixture in record.golden.fixtures:
        key = Conversation(name="", messages=fixture.messages, tools=fixture.tools).key
        renderings[key] = Rendering(text=fixture.text, ids=fixture.ids)
    for refused in record.golden.refused:
        key = Conversation(name="", messages=refused.messages, tools=refused.tools).key
        renderings[key] = Rendering(refusal=refused.message)
    for case in record.golden.cases:
        key = Conversation(name="", messages=case.messages).key
        renderings[key] = Rendering(text=case.text, ids=case.prompt_ids)
    return renderings


def render_with(renderer: Any) -> Render:
    """A loaded template and tokenizer (``Renderer``) as something to compare."""

    def render(conversation: Conversation) -> Rendering:
        try:
            rendered = renderer.render(conversation.messages, conversation.tools)
        except TemplateError as error:
            return Rendering(refusal=str(error))
        return Rendering(text=rendered.text, ids=tuple(rendered.ids))

    return render


def render_from(record: ReleaseRecord) -> Render:
    """A record alone: it knows the conversations that were recorded, and None of the others."""
    recorded = recorded_renderings(record)
    return lambda conversation: recorded.get(conversation.key)


@dataclass(frozen=True, kw_only=True)
class Compared:
    """Both renderings of the conversations that both sides know."""

    pairs: tuple[tuple[Conversation, Rendering, Rendering], ...]

    @property
    def changes(self) -> list[RenderingChange]:
        found = (_change(conversation, left, right) for conversation, left, right in self.pairs)
        return [change for change in found if change is not None]


def compare_renderings(conversations: Sequence[Conversation], reference: Render, candidate: Render) -> Compared:
    pairs = []
    for conversation in conversations:
        left, right = reference(conversation), candidate(conversation)
        if left is not None and right is not None:
            pairs.append((conversation, left, right))
    return Compared(pairs=tuple(pairs))


def measure_renderings(
    compared: Compared,
    *,
    differing: Sequence[str],
    candidate_record: ReleaseRecord | None,
    bos_id: int | None,
) -> Figures:
    """The figures of the module's docstring. ``differing`` are the manifest parts that differ."""
    changes = compared.changes
    kinds = [change.kind for change in changes]
    text_explained = bool({"chatTemplate", "specialTokens", "tokenizer"} & set(differing))
    ids_explained = bool({"specialTokens", "tokenizer"} & set(differing))
    recorded = {} if candidate_record is None else recorded_renderings(candidate_record)
    return {
        "conversations": len(compared.pairs),
        "textChanged": kinds.count("text"),
        "idsChanged": kinds.count("ids"),
        "refused": kinds.count("refused"),
        "newlyAccepted": kinds.count("accepted"),
        "contentLost": sum(_loses_content(*pair) for pair in compared.pairs),
        "doubledBos": sum(_doubles(right, bos_id) and not _doubles(left, bos_id) for _, left, right in compared.pairs),
        "unlikeRecord": sum(not recorded.get(c.key, right).is_like(right) for c, _, right in compared.pairs),
        "unexplained": (0 if ids_explained else kinds.count("ids"))
        + (0 if text_explained else len(kinds) - kinds.count("ids")),
        "changesDigest": digest_json([change.to_json_value() for change in changes]),
    }


def describe_renderings(figures: Figures) -> str:
    """One sentence for the table."""
    changed = int(figures["textChanged"]) + int(figures["idsChanged"])
    what = (
        f"{changed} of {figures['conversations']} conversations change, all shown"
        if changed
        else (f"{figures['conversations']} conversations are rendered as before")
    )
    accepted = f"; {figures['newlyAccepted']} that were refused are rendered now" if figures["newlyAccepted"] else ""
    return f"{what}{accepted}"


def _change(conversation: Conversation, left: Rendering, right: Rendering) -> RenderingChange | None:
    name = conversation.name
    if left.is_like(right):
        return None
    if right.refusal is not None:
        return RenderingChange(name=name, kind="refused", message=f"refused now: {right.refusal}")
    if left.refusal is not None:
        return RenderingChange(name=name, kind="accepted", message="was refused, is rendered now")
    ids = f"{len(left.ids)} ids → {len(right.ids)}"
    if left.text != right.text:
        return RenderingChange(name=name, kind="text", message=ids, lines=tuple(_diff(left.text, right.text)))
    index = first_difference(left.ids, right.ids) or 0
    message = f"{ids}, from id {index} on: {show_ids(left.ids, index)} → {show_ids(right.ids, index)}"
    return RenderingChange(name=name, kind="ids", message=message)


def _diff(left: str, right: str) -> list[str]:
    """Changed lines with a line of context, each with its line end made visible: white space is what templates get wrong."""
    before, after = (text.splitlines(keepends=True) for text in (left, right))
    lines = list(difflib.unified_diff(before, after, n=CONTEXT_LINES))[2:]
    return [line.rstrip("\n") if line.startswith("@@") else f"{line[0]}{line[1:]!r}" for line in lines]


def _loses_content(conversation: Conversation, left: Rendering, right: Rendering) -> bool:
    contents = (message.get("content") for message in conversation.messages)
    kept = [text.strip() for text in contents if isinstance(text, str) and text.strip() and text.strip() in left.text]
    return right.refusal is None and any(text not in right.text for text in kept)


def _doubles(rendering: Rendering, bos_id: int | None) -> bool:
    return bos_id is not None and rendering.ids[:2] == (bos_id, bos_id)

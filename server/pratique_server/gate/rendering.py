"""Render the recorded conversations with the loaded template and tokenizer: text and ids must be exact."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pratique_contract.golden import RefusedFixture
from pratique_contract.reasons import Reason
from pratique_contract.record import ReleaseRecord
from pratique_contract.verdict import Evidence
from pratique_server.errors import TemplateError
from pratique_server.gate.differences import (
    describe_context,
    describe_text_difference,
    describe_token,
    first_difference,
    show_ids,
    show_text,
)
from pratique_server.gate.errors import CheckFailedError
from pratique_server.text.protocols import ConversationRenderer

Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """One recorded rendering, of a fixture or of a golden case's prompt."""

    name: str
    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...] | None
    text: str
    ids: tuple[int, ...]


def conversations_of(record: ReleaseRecord) -> tuple[Conversation, ...]:
    """Everything in the record that says how messages become ids."""
    fixtures = (
        Conversation(name=f"fixture {f.name}", messages=f.messages, tools=f.tools, text=f.text, ids=f.ids)
        for f in record.golden.fixtures
    )
    cases = (
        Conversation(name=f"case {c.name}", messages=c.messages, tools=None, text=c.text, ids=c.prompt_ids)
        for c in record.golden.cases
    )
    return (*fixtures, *cases)


def check_all_renderings(record: ReleaseRecord, renderer: ConversationRenderer, decode: Decode) -> str:
    """Every recorded conversation, the refused ones too. Blocking: run it in a thread."""
    conversations = conversations_of(record)
    for conversation in conversations:
        check_rendering(conversation, renderer, decode)
    for fixture in record.golden.refused:
        check_refused(fixture, renderer)
    refused = f", {len(record.golden.refused)} refused as recorded" if record.golden.refused else ""
    return f"{len(conversations)} conversations exact{refused}"


def check_rendering(conversation: Conversation, renderer: ConversationRenderer, decode: Decode) -> None:
    """Raises ``CheckFailedError`` with the first differing character or token. Blocking: run it in a thread."""
    try:
        rendered = renderer.render(conversation.messages, conversation.tools)
    except Exception as error:
        raise CheckFailedError(
            Reason.TEMPLATE_MISMATCH,
            f"{conversation.name}: the template refuses messages that the recorded one rendered: {error}",
            part="chatTemplate",
        ) from error
    _check_text(conversation, rendered.text)
    _check_ids(conversation, list(rendered.ids), decode)


def check_refused(fixture: RefusedFixture, renderer: ConversationRenderer) -> None:
    """Raises ``CheckFailedError`` when the template takes messages that the recorded one refused. Blocking."""
    try:
        rendered = renderer.render(fixture.messages, fixture.tools)
    except TemplateError:
        return
    shown = show_text(rendered.text, 0)
    raise CheckFailedError(
        Reason.TEMPLATE_MISMATCH,
        f"fixture {fixture.name}: the template renders messages that the recorded one refused ({fixture.message})",
        part="chatTemplate",
        expected=f"refused: {fixture.message}",
        observed=shown,
        evidence=(Evidence(subject="rendered text", expected="refused", observed=shown),),
    )


def _check_text(conversation: Conversation, observed: str) -> None:
    index = first_difference(conversation.text, observed)
    if index is None:
        return
    expected_shown, observed_shown = show_text(conversation.text, index), show_text(observed, index)
    raise CheckFailedError(
        Reason.TEMPLATE_MISMATCH,
        f"{conversation.name}: rendered {describe_text_difference(conversation.text, observed, index)}",
        part="chatTemplate",
        expected=expected_shown,
        observed=observed_shown,
        evidence=(Evidence(subject="rendered text", expected=expected_shown, observed=observed_shown),),
    )


def _check_ids(conversation: Conversation, observed: list[int], decode: Decode) -> None:
    index = first_difference(conversation.ids, observed)
    if index is None:
        return
    ids = list(conversation.ids)
    raise CheckFailedError(
        Reason.TOKENIZER_MISMATCH,
        f"{conversation.name}: token {index} of the same text is {describe_token(observed, index, decode)}, "
        f"{describe_token(ids, index, decode)} was recorded, {describe_context(ids, index, decode)}",
        part="tokenizer",
        expected=show_ids(ids, index),
        observed=show_ids(observed, index),
        evidence=(
            Evidence(subject="ids of the same text", expected=show_ids(ids, index), observed=show_ids(observed, index)),
            Evidence(
                subject="text of the ids",
                expected=repr(decode(ids[max(0, index - 4) : index + 4])),
                observed=repr(decode(observed[max(0, index - 4) : index + 4])),
            ),
        ),
    )

"""Render the recorded conversations with the loaded template and tokenizer: text and ids must be exact."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pratique_contract.reasons import Reason
from pratique_contract.record import ReleaseRecord
from pratique_contract.verdict import Evidence
from pratique_server.gate.differences import describe_character, first_difference, show_ids, show_text
from pratique_server.gate.errors import CheckFailedError
from pratique_server.release.recorder import ConversationRenderer

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


def check_rendering(conversation: Conversation, renderer: ConversationRenderer, decode: Decode) -> None:
    """Raises ``CheckFailedError`` with the first differing character or token. Blocking: run it in a thread."""
    try:
        rendered = renderer.render(conversation.messages, conversation.tools)
    except Exception as error:
        raise CheckFailedError(
            Reason.TEMPLATE_MISMATCH,
            f"{conversation.name}: the template refuses messages that the approved one rendered: {error}",
            part="chatTemplate",
        ) from error
    _check_text(conversation, rendered.text)
    _check_ids(conversation, list(rendered.ids), decode)


def _check_text(conversation: Conversation, observed: str) -> None:
    index = first_difference(conversation.text, observed)
    if index is None:
        return
    expected_shown, observed_shown = show_text(conversation.text, index), show_text(observed, index)
    raise CheckFailedError(
        Reason.TEMPLATE_MISMATCH,
        f"{conversation.name}: rendered character {index} is {describe_character(observed, index)}, "
        f"{describe_character(conversation.text, index)} was approved",
        part="chatTemplate",
        expected=expected_shown,
        observed=observed_shown,
        evidence=(Evidence(subject="rendered text", expected=expected_shown, observed=observed_shown),),
    )


def _check_ids(conversation: Conversation, observed: list[int], decode: Decode) -> None:
    index = first_difference(conversation.ids, observed)
    if index is None:
        return
    expected_text, observed_text = decode(conversation.ids[index : index + 1]), decode(observed[index : index + 1])
    raise CheckFailedError(
        Reason.TOKENIZER_MISMATCH,
        f"{conversation.name}: token {index} is {observed_text!r}, {expected_text!r} was approved",
        part="tokenizer",
        expected=show_ids(conversation.ids, index),
        observed=show_ids(observed, index),
        evidence=(
            Evidence(
                subject="ids of the same text", expected=str(list(conversation.ids)[:64]), observed=str(observed[:64])
            ),
        ),
    )

"""What a changed rendering means: shown and explained it passes, wrong it does not."""

from typing import Any

import pytest

from pratique_contract.golden import GoldenRecord, RefusedFixture, RenderFixture
from pratique_contract.record import ReleaseRecord
from pratique_contract.review import find_exceeded
from pratique_server.review.limits import choose_limits
from pratique_server.review.rendering import (
    Conversation,
    Rendering,
    compare_renderings,
    conversations_of,
    measure_renderings,
    render_from,
)
from tests.support.releases import make_manifest, make_record

ASK = Conversation(name="plain", messages=({"role": "user", "content": " Ahoy\n"},))
LIMITS = choose_limits("RenderedFixtures", make_manifest(), make_manifest(), {})


def exceeded(
    left: Rendering, right: Rendering, *differing: str, record: ReleaseRecord | None = None, bos: int | None = 1
) -> list[str]:
    compared = compare_renderings([ASK], lambda _: left, lambda _: right)
    figures = measure_renderings(compared, differing=differing, candidate_record=record, bos_id=bos)
    return [line.split(" ", 1)[0] for line in find_exceeded(figures, LIMITS)]


def rendering(text: str = "<s>Ahoy", *ids: int) -> Rendering:
    return Rendering(text=text, ids=ids or (1, 5, 6))


CASES: dict[str, tuple[Rendering, Rendering, tuple[str, ...], list[str]]] = {
    "the same": (rendering(), rendering(), (), []),
    "another template": (rendering(), rendering("<s>[Ahoy]", 1, 8), ("chatTemplate",), []),
    "another text for no reason": (rendering(), rendering("<s>[Ahoy]", 1, 8), ("engine",), ["unexplained"]),
    "other ids of the same text, other tokenizer": (rendering(), rendering("<s>Ahoy", 1, 56), ("tokenizer",), []),
    "other ids though only the template differs": (
        rendering(),
        rendering("<s>Ahoy", 1, 56),
        ("chatTemplate",),
        ["unexplained"],
    ),
    "refused": (rendering(), Rendering(refusal="no"), ("chatTemplate",), ["refused"]),
    "the question is gone": (rendering(), rendering("<s>[]", 1, 8), ("chatTemplate",), ["contentLost"]),
    "BOS twice": (rendering(), rendering("<s><s>Ahoy", 1, 1, 5, 6), ("chatTemplate",), ["doubledBos"]),
    "BOS twice in both": (rendering("a", 1, 1, 5), rendering("b", 1, 1, 6), ("chatTemplate",), []),
    "refused before": (Rendering(refusal="no"), rendering(), ("chatTemplate",), []),
}


@pytest.mark.req("R132")
@pytest.mark.parametrize("case", CASES)
def test_a_change_passes_when_it_is_explained_and_loses_nothing(case: str) -> None:
    """Doubled BOS: vllm#2012; a message that vanishes: mlx-openai-server PR#205."""
    left, right, differing, expected = CASES[case]
    assert exceeded(left, right, *differing) == expected


def test_a_candidate_that_renders_other_than_its_record_does_not_pass() -> None:
    fixture = RenderFixture(name="plain", messages=ASK.messages, text="<s>Ahoy", ids=(1, 5, 6))
    record = make_record(golden=GoldenRecord(fixtures=(fixture,)))
    assert exceeded(rendering(), rendering(), record=record) == []
    assert exceeded(rendering(), rendering("<s>Ahoy!", 1, 5, 6, 7), "chatTemplate", record=record) == ["unlikeRecord"]


def test_a_refusal_that_was_recorded_has_to_stay_one() -> None:
    refused = RefusedFixture(name="plain", messages=ASK.messages, message="no tools here")
    record = make_record(golden=GoldenRecord(refused=(refused,)))
    left = Rendering(refusal="in other words")
    assert exceeded(left, Rendering(refusal="no"), record=record) == []
    assert exceeded(left, rendering(), "chatTemplate", record=record) == ["unlikeRecord"]
    (pair,) = compare_renderings(conversations_of(record), render_from(record), render_from(record)).pairs
    assert pair[1].refusal == "no tools here"


def change(left: Rendering, right: Rendering) -> Any:
    (found,) = compare_renderings([ASK], lambda _: left, lambda _: right).changes
    return found


def test_changed_lines_show_their_white_space() -> None:
    found = change(rendering("system\nYou help.\n\nAhoy", 1, 2), rendering("system\nYou help. \n\nAhoy", 1, 2, 3))
    assert (found.kind, found.message) == ("text", "2 ids → 3")
    assert "-'You help.\\n'" in found.lines
    assert "+'You help. \\n'" in found.lines


def test_changed_ids_of_the_same_text_show_where_they_part() -> None:
    found = change(rendering("Ahoy", 1, 5, 6), rendering("Ahoy", 1, 56))
    assert (found.kind, found.message) == ("ids", "3 ids → 2, from id 1 on: [1 ▸5 6] → [1 ▸56]")


def test_the_digest_names_exactly_the_changes_that_were_shown() -> None:
    def digest(text: str) -> Any:
        compared = compare_renderings([ASK], lambda _: rendering(), lambda _: rendering(text, 1, 9))
        return measure_renderings(compared, differing=("chatTemplate",), candidate_record=None, bos_id=1)[
            "changesDigest"
        ]

    assert digest("<s>Ahoy!") == digest("<s>Ahoy!") != digest("<s>Ahoy?")


def test_two_records_compare_what_both_have_rendered() -> None:
    left, right = make_record(), make_record()
    compared = compare_renderings(conversations_of(left, right), render_from(left), render_from(right))
    # The record's fixtures and its first golden case have the same messages, which counts once.
    assert [conversation.name for conversation, _, _ in compared.pairs] == [
        "plain",
        "case greeting-in-two",
        "case greeting-again",
    ]
    assert compared.changes == []

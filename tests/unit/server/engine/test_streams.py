"""Buffers between engine and readers: bounded, ended exactly once, silent after the end."""

import asyncio

import pytest

from pratique_server.engine.protocol import (
    DuplicateRequestError,
    EngineDeadError,
    EngineOverloadedError,
    FinishReason,
    RequestAbortedError,
    StepEvent,
    TokenLogprobs,
)
from pratique_server.engine.streams import EVENTS_MAX, EventStream, LiveStreams


def make_event(token_id: int, finish: FinishReason | None = None) -> StepEvent:
    logprobs = [TokenLogprobs(chosen=-float(token_id))]
    return StepEvent(
        request_id="r", token_ids=[token_id], logprobs=logprobs, finish=finish, emitted_at=float(token_id),
        enqueued_at=0.5 if token_id == 0 else None,
    )  # fmt: skip


async def read(stream: EventStream) -> list[StepEvent]:
    events = []
    while (event := await stream.next(wait_seconds=1)) is not None:
        events.append(event)
    return events


async def test_events_come_in_order_and_the_finish_ends_the_stream() -> None:
    stream = EventStream("r", 1)
    stream.push(make_event(0))
    stream.push(make_event(1, FinishReason.STOP))
    stream.push(make_event(2))
    assert [event.token_ids for event in await read(stream)] == [[0], [1]]


@pytest.mark.req("R84", "R107")
async def test_a_reader_that_does_not_read_costs_a_bounded_number_of_events_and_no_token() -> None:
    stream = EventStream("r", 1)
    for token_id in range(100):
        stream.push(make_event(token_id))
    stream.push(make_event(100, FinishReason.LENGTH))
    events = await read(stream)
    assert len(events) == EVENTS_MAX
    assert [token_id for event in events for token_id in event.token_ids] == list(range(101))
    assert [item.chosen for event in events for item in event.logprobs or []] == [-float(n) for n in range(101)]
    assert [event.finish for event in events] == [None] * (EVENTS_MAX - 1) + [FinishReason.LENGTH]
    assert (events[0].enqueued_at, events[-1].emitted_at) == (0.5, 100.0)


async def test_a_waiting_reader_is_woken() -> None:
    stream = EventStream("r", 1)
    reader = asyncio.create_task(read(stream))
    await asyncio.sleep(0)
    stream.push(make_event(0, FinishReason.STOP))
    assert len(await reader) == 1


@pytest.mark.req("R88")
async def test_nothing_follows_a_cancellation_not_even_what_was_already_here() -> None:
    stream = EventStream("r", 1)
    stream.push(make_event(0))
    stream.abort("The request was cancelled.")
    stream.push(make_event(1))
    with pytest.raises(RequestAbortedError):
        await stream.next(wait_seconds=1)


async def test_an_engine_error_comes_after_the_tokens_that_were_made() -> None:
    stream = EventStream("r", 1)
    stream.push(make_event(0))
    stream.fail(EngineDeadError("gone"))
    first = await stream.next(wait_seconds=1)
    assert first is not None
    with pytest.raises(EngineDeadError):
        await stream.next(wait_seconds=1)


async def test_a_finished_stream_stays_finished_when_the_engine_dies() -> None:
    stream = EventStream("r", 1)
    stream.push(make_event(0, FinishReason.STOP))
    stream.fail(EngineDeadError("gone"))
    assert [event.finish for event in await read(stream)] == [FinishReason.STOP]


async def test_live_ids_are_unique_and_their_number_is_bounded() -> None:
    """vllm#15041: the same id twice. The gate's requests pass the bound."""
    streams = LiveStreams(limit=2)
    first = streams.open("a", reserved=False)
    with pytest.raises(DuplicateRequestError):
        streams.open("a", reserved=False)
    streams.open("b", reserved=False)
    with pytest.raises(EngineOverloadedError):
        streams.open("c", reserved=False)
    streams.open("gate", reserved=True)
    streams.close(first)
    streams.close(first)
    assert streams.open("a", reserved=True).version > first.version


async def test_an_event_for_an_earlier_use_of_the_id_finds_no_stream() -> None:
    streams = LiveStreams(limit=5)
    old = streams.open("a", reserved=False)
    streams.close(old)
    new = streams.open("a", reserved=False)
    assert streams.get("a", old.version) is None
    assert streams.get("a", new.version) is new
    streams.close(old)
    assert streams.get("a") is new


async def test_waiting_for_idle_ends_with_the_last_stream_or_the_time() -> None:
    streams = LiveStreams(limit=5)
    assert await streams.wait_idle(wait_seconds=0)
    stream = streams.open("a", reserved=False)
    assert not await streams.wait_idle(wait_seconds=0.01)
    waiter = asyncio.create_task(streams.wait_idle(wait_seconds=1))
    await asyncio.sleep(0)
    streams.close(stream)
    assert await waiter

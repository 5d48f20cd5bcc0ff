"""The right release, computed wrongly: K/V, positions, masks, and what reaches over from a neighbour in the batch.

Put into the engine after it has loaded, as in ``computation``.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Final

import msgspec
import torch
from torch import Tensor

from pratique_server.engine.step_engine import StepOutput
from pratique_server.engine.torch_engine import attention, kv_storage, model_runner, sampler
from pratique_server.engine.torch_engine import engine as torch_engine
from pratique_server.engine.torch_engine.engine import TorchEngine
from pratique_server.engine.torch_engine.sampler import Sampled
from tests.mutation.fault import Hook
from tests.mutation.faults.hooks import changed, on_requests, on_step, wrong
from tests.mutation.scene import Scene

BLOCK: Final = 16
# Long enough for an answer, short enough to wait out the faults that end in silence.
SILENCE_SECONDS: Final = 3.0


# K/V, positions and masks


def _on_write(corrupt: Callable[[Tensor, int, int], None]) -> Hook:
    """After each write of K/V: ``corrupt`` gets the keys or values of one layer, the first and the end position written."""

    def hook(_: TorchEngine, scene: Scene) -> None:
        write = kv_storage.SequenceKv.write

        def faulty(self: Any, layer: int, start: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
            held = write(self, layer, start, key, value)
            for tensor in held:
                corrupt(tensor, start, start + key.shape[2])
            return held

        scene.monkeypatch.setattr(kv_storage.SequenceKv, "write", faulty)

    return hook


def lost_block(after: int) -> Hook:
    """Once a sequence is longer than ``after`` tokens, the block before that place holds zeros."""

    def corrupt(tensor: Tensor, start: int, end: int) -> None:
        if end > after:
            tensor[:, :, after - BLOCK : after] = 0

    return _on_write(corrupt)


def _lost_in_decode(tensor: Tensor, start: int, end: int) -> None:
    if start and end - start == 1:
        tensor[:, :, max(0, start - BLOCK) : start] = 0


def _lost_between_chunks(tensor: Tensor, start: int, end: int) -> None:
    """The last block of one prefill chunk is gone when the next one begins."""
    if start and end - start > 1:
        tensor[:, :, start - BLOCK : start] = 0


def _of_another_release(tensor: Tensor, start: int, end: int) -> None:
    """The first block of every prompt comes from a cache that another release has filled."""
    if start == 0:
        tensor[:, :, :BLOCK] = tensor[:, :, :BLOCK].flip(-1)


def _of_another_prompt(_: TorchEngine, scene: Scene) -> None:
    """A prefix cache whose key does not tell two prompts apart: the second gets the K/V of the first."""
    write, kept = kv_storage.SequenceKv.write, {}

    def faulty(self: Any, layer: int, start: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        held = write(self, layer, start, key, value)
        if start == 0 and layer in kept:
            for tensor, stale in zip(held, kept[layer], strict=True):
                length = min(stale.shape[2], key.shape[2] - 1)
                tensor[:, :, :length] = stale[:, :, :length]
        if start == 0:
            kept[layer] = [tensor.clone() for tensor in (key, value)]
        return held

    scene.monkeypatch.setattr(kv_storage.SequenceKv, "write", faulty)


def _slot_off_by_one(_: TorchEngine, scene: Scene) -> None:
    """In decode, K/V lands one slot too early."""
    write = kv_storage.SequenceKv.write

    def faulty(self: Any, layer: int, start: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        late = start if key.shape[2] > 1 or start == 0 else start - 1
        write(self, layer, late, key, value)
        return write(self, layer, start, key if late == start else torch.zeros_like(key), value)

    scene.monkeypatch.setattr(kv_storage.SequenceKv, "write", faulty)


def _layers_mixed_up(_: TorchEngine, scene: Scene) -> None:
    write = kv_storage.SequenceKv.write

    def faulty(self: Any, layer: int, start: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        own = write(self, layer, start, key, value)
        return own if layer == 0 else write(self, 0, start, *(tensor[:, :, start : start + 1] for tensor in own))

    scene.monkeypatch.setattr(kv_storage.SequenceKv, "write", faulty)


def _positions(change: Callable[[int], int]) -> Hook:
    def hook(_: TorchEngine, scene: Scene) -> None:
        pack = model_runner._pack

        def faulty(items: Any, rows_min: int) -> Any:
            ids, positions, segments, rows = pack(items, rows_min)
            return ids, [change(position) for position in positions], segments, rows

        scene.monkeypatch.setattr(model_runner, "_pack", faulty)

    return hook


def _after(boundary: int) -> Callable[[int], int]:
    return lambda position: position + 1 if position >= boundary else position


def _masks(change: Callable[[Any, Tensor], None]) -> Hook:
    def hook(_: TorchEngine, scene: Scene) -> None:
        make = attention._causal_mask

        def faulty(segment: Any, window: Any, rows: int, like: Tensor) -> Tensor:
            mask = make(segment, window, rows, like)
            change(segment, mask)
            return mask

        scene.monkeypatch.setattr(attention, "_causal_mask", faulty)

    return hook


def _hide_newest(segment: Any, mask: Tensor) -> None:
    if segment.start and segment.count == 1:
        mask[..., segment.start] = float("-inf")


def _show_future(segment: Any, mask: Tensor) -> None:
    mask[..., : segment.start + segment.count] = 0


def _window(segment: Any, mask: Tensor) -> None:
    """A sliding window that the model does not have."""
    last = segment.start + segment.count - 1
    mask[..., : max(0, last - 24)] = float("-inf")
    mask[..., 0] = 0


# Batches


def _logits_of_neighbours(engine: TorchEngine, scene: Scene) -> None:
    """Each request of a batch gets the logits of the next one."""
    execute = engine._runner.execute
    scene.monkeypatch.setattr(engine._runner, "execute", lambda items: execute(items).roll(1, 0))


def _cache_of_neighbours(engine: TorchEngine, scene: Scene) -> None:
    """Two requests that are computed in one step write into the same cache."""
    make = engine._run_items

    def faulty(plan: Any) -> Any:
        items = make(plan)
        return [dataclasses.replace(item, kv=items[0].kv) for item in items]

    scene.monkeypatch.setattr(engine, "_run_items", faulty)


def _rules_of(choose: Callable[[list[Any]], list[Any]]) -> Hook:
    """The sampling rules of some requests of a step act on every request of the step."""

    def hook(_: TorchEngine, scene: Scene) -> None:
        sample = torch_engine.sample

        def faulty(logits: Tensor, sequences: list[Any]) -> list[Sampled]:
            if len(sequences) < 2:
                return sample(logits, sequences)
            changed = logits.clone()
            for row in range(len(sequences)):
                for other in choose(sequences):
                    sampler._bias(changed[row], other)
            return sample(changed, sequences)

        scene.monkeypatch.setattr(torch_engine, "sample", faulty)

    return hook


def _stop_ids_of_neighbours(engine: TorchEngine, scene: Scene) -> None:
    """Whatever ends one live request ends every other."""

    def change(request: Any) -> Any:
        stops = {token for other in engine._live.values() for token in other.request.stop_token_ids}
        return changed(request, stop_token_ids=sorted({*request.stop_token_ids, *stops}))

    on_requests(change)(engine, scene)


def _events_of_neighbours(engine: TorchEngine, scene: Scene) -> None:
    """Two answers that are given in one step go to each other's request."""

    def change(output: StepOutput) -> StepOutput:
        ids = [event.request_id for event in output.events]
        rolled = [*ids[1:], *ids[:1]]
        if any(event.finish for event in output.events):
            return output
        events = [msgspec.structs.replace(e, request_id=other) for e, other in zip(output.events, rolled, strict=True)]
        return StepOutput(events=events, failures=output.failures)

    on_step(engine, scene, change)


FAULTS: Final = (
    wrong("K/V of the first block lost once a sequence is longer", lost_block(16)),
    wrong("K/V of the third block lost once a sequence is longer", lost_block(48)),
    wrong("K/V lost after 256 tokens", lost_block(256)),
    wrong("K/V lost after 512 tokens, one key tile", lost_block(512)),
    wrong("K/V of the newest block lost in decode", _on_write(_lost_in_decode)),
    wrong("K/V of a chunk's last block lost in the next chunk", _on_write(_lost_between_chunks), bug="transformers PR#45943"),
    wrong("K/V written one slot too early in decode", _slot_off_by_one),
    wrong("K/V of layer 0 read by layer 1", _layers_mixed_up),
    wrong("K/V of another release in the prefix cache", _on_write(_of_another_release), bug="LLMKube#619"),
    wrong("K/V of another prompt in the prefix cache", _of_another_prompt, bug="GHSA-rm76-4mrf-v9r8"),
    wrong("positions shifted after the first block", _positions(_after(16))),
    wrong("positions shifted after 64 tokens", _positions(_after(64))),
    wrong("positions shifted after 512 tokens", _positions(_after(512))),
    wrong("positions start at one", _positions(lambda position: position + 1 if position else 0)),
    wrong("all positions zero", _positions(lambda position: 0)),
    wrong("the newest key hidden in decode", _masks(_hide_newest)),
    wrong("the future shown in prefill", _masks(_show_future)),
    wrong("a window of 24 tokens that the model does not have", _masks(_window)),
    wrong("logits of a batch neighbour", _logits_of_neighbours, bug="vllm#10583"),
    wrong("cache shared with a batch neighbour", _cache_of_neighbours, bug="pytorch#194167"),
    wrong("sampling rules of every batch neighbour", _rules_of(lambda sequences: sequences), bug="vllm#54195"),
    wrong("sampling rules of the oldest batch neighbour", _rules_of(lambda sequences: sequences[:1]), bug="vllm#54195"),
    wrong("sampling rules of the newest batch neighbour", _rules_of(lambda sequences: sequences[-1:]), bug="vllm#54195"),
    wrong("stop ids of a live neighbour", _stop_ids_of_neighbours, bug="vllm#54195"),
    wrong("answers of two requests exchanged", _events_of_neighbours, bug="vllm PR#27987"),
)  # fmt: skip

"""The right release, computed wrongly: K/V, positions, masks, batches, sampling, memory. Every digest is the approved one.

Each fault is put into the engine after it has loaded, so that neither the manifest nor the load-time self-check can know: only
the golden cases, through the whole path, can.
"""

import dataclasses
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec
import torch
from torch import Tensor

from pratique_contract.reasons import Reason
from pratique_server.engine.protocol import FinishReason, TokenLogprobs
from pratique_server.engine.step_engine import StepOutput
from pratique_server.engine.torch_engine import attention, kv_storage, model_runner, sampler
from pratique_server.engine.torch_engine import engine as torch_engine
from pratique_server.engine.torch_engine.engine import TorchEngine
from pratique_server.engine.torch_engine.sampler import Sampled
from tests.mutation.fault import Arrange, Fault, Hook, all_of, declared, engine

if TYPE_CHECKING:
    from tests.mutation.scene import Scene

BLOCK: Final = 16
# Long enough for an answer, short enough to wait out the faults that end in silence.
SILENCE_SECONDS: Final = 3.0


# K/V, positions and masks


def _on_write(corrupt: Callable[[Tensor, int, int], None]) -> Hook:
    """After each write of K/V: ``corrupt`` gets the keys or values of one layer, the first and the end position written."""

    def hook(_: TorchEngine, scene: "Scene") -> None:
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


def _of_another_prompt(_: TorchEngine, scene: "Scene") -> None:
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


def _slot_off_by_one(_: TorchEngine, scene: "Scene") -> None:
    """In decode, K/V lands one slot too early."""
    write = kv_storage.SequenceKv.write

    def faulty(self: Any, layer: int, start: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        late = start if key.shape[2] > 1 or start == 0 else start - 1
        write(self, layer, late, key, value)
        return write(self, layer, start, key if late == start else torch.zeros_like(key), value)

    scene.monkeypatch.setattr(kv_storage.SequenceKv, "write", faulty)


def _layers_mixed_up(_: TorchEngine, scene: "Scene") -> None:
    write = kv_storage.SequenceKv.write

    def faulty(self: Any, layer: int, start: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        own = write(self, layer, start, key, value)
        return own if layer == 0 else write(self, 0, start, *(tensor[:, :, start : start + 1] for tensor in own))

    scene.monkeypatch.setattr(kv_storage.SequenceKv, "write", faulty)


def _positions(change: Callable[[int], int]) -> Hook:
    def hook(_: TorchEngine, scene: "Scene") -> None:
        pack = model_runner._pack

        def faulty(items: Any, rows_min: int) -> Any:
            ids, positions, segments, rows = pack(items, rows_min)
            return ids, [change(position) for position in positions], segments, rows

        scene.monkeypatch.setattr(model_runner, "_pack", faulty)

    return hook


def _after(boundary: int) -> Callable[[int], int]:
    return lambda position: position + 1 if position >= boundary else position


def _masks(change: Callable[[Any, Tensor], None]) -> Hook:
    def hook(_: TorchEngine, scene: "Scene") -> None:
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


def _logits_of_neighbours(engine: TorchEngine, scene: "Scene") -> None:
    """Each request of a batch gets the logits of the next one."""
    execute = engine._runner.execute
    scene.monkeypatch.setattr(engine._runner, "execute", lambda items: execute(items).roll(1, 0))


def _cache_of_neighbours(engine: TorchEngine, scene: "Scene") -> None:
    """Two requests that are computed in one step write into the same cache."""
    make = engine._run_items

    def faulty(plan: Any) -> Any:
        items = make(plan)
        return [dataclasses.replace(item, kv=items[0].kv) for item in items]

    scene.monkeypatch.setattr(engine, "_run_items", faulty)


def _rules_of(choose: Callable[[list[Any]], list[Any]]) -> Hook:
    """The sampling rules of some requests of a step act on every request of the step."""

    def hook(_: TorchEngine, scene: "Scene") -> None:
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


def _stop_ids_of_neighbours(engine: TorchEngine, scene: "Scene") -> None:
    """Whatever ends one live request ends every other."""

    def change(request: Any) -> Any:
        stops = {token for other in engine._live.values() for token in other.request.stop_token_ids}
        return _with(request, stop_token_ids=sorted({*request.stop_token_ids, *stops}))

    _requests(change)(engine, scene)


def _events_of_neighbours(engine: TorchEngine, scene: "Scene") -> None:
    """Two answers that are given in one step go to each other's request."""

    def change(output: StepOutput) -> StepOutput:
        ids = [event.request_id for event in output.events]
        rolled = [*ids[1:], *ids[:1]]
        if any(event.finish for event in output.events):
            return output
        events = [msgspec.structs.replace(e, request_id=other) for e, other in zip(output.events, rolled, strict=True)]
        return StepOutput(events=events, failures=output.failures)

    _on_step(engine, scene, change)


# Sampling and log-probabilities


def _sampling(change: Callable[[Tensor, Any, Sampled], Sampled]) -> Hook:
    """After a token was chosen: ``change`` gets its row of logits and its sequence, and may choose another."""

    def hook(_: TorchEngine, scene: "Scene") -> None:
        sample = torch_engine.sample

        def faulty(logits: Tensor, sequences: list[Any]) -> list[Sampled]:
            results = sample(logits, sequences)
            return [change(*parts) for parts in zip(logits, sequences, results, strict=True)]

        scene.monkeypatch.setattr(torch_engine, "sample", faulty)

    return hook


def _choose(row: Tensor, sampled: Sampled, token: int) -> Sampled:
    """Another token, with its honest log-probability."""
    honest = float(torch.log_softmax(row, dim=-1)[token])
    top = sampled.logprobs.top if sampled.logprobs else []
    return Sampled(token, TokenLogprobs(chosen=honest, top=top) if sampled.logprobs else None)


def _runner_up(row: Tensor, sequence: Any, sampled: Sampled) -> Sampled:
    return _choose(row, sampled, int(row.topk(2).indices[1])) if sequence.num_output == 5 else sampled


def _draft_accepted(row: Tensor, sequence: Any, sampled: Sampled) -> Sampled:
    """Every fourth token is the draft's, whatever the model says."""
    return _choose(row, sampled, sequence.token_ids[-1]) if sequence.num_output % 4 == 3 else sampled


def _hot(row: Tensor, sequence: Any, sampled: Sampled) -> Sampled:
    """Temperature 0 is taken for "use the default"."""
    generator = torch.Generator().manual_seed(sequence.num_output)
    token = int(torch.multinomial(torch.softmax(row / 4.0, dim=-1), 1, generator=generator))
    return _choose(row, sampled, token)


def _penalized(row: Tensor, sequence: Any, sampled: Sampled) -> Sampled:
    """A repetition penalty that nobody asked for."""
    adjusted = row.clone()
    seen = torch.tensor(sorted(set(sequence.token_ids)))
    adjusted[seen] = torch.where(adjusted[seen] > 0, adjusted[seen] / 2, adjusted[seen] * 2)
    return _choose(row, sampled, int(adjusted.argmax()))


def _never_stops(row: Tensor, sequence: Any, sampled: Sampled) -> Sampled:
    """The end of turn is masked out."""
    masked = row.clone()
    masked[sequence.request.stop_token_ids] = float("-inf")
    return _choose(row, sampled, int(masked.argmax()))


def _lie(change: Callable[[Tensor, float], float]) -> Hook:
    """The right token with another log-probability than the model's."""

    def told(row: Tensor, _: Any, sampled: Sampled) -> Sampled:
        if sampled.logprobs is None:
            return sampled
        return Sampled(
            sampled.token_id, TokenLogprobs(chosen=change(row, sampled.logprobs.chosen), top=sampled.logprobs.top)
        )

    return _sampling(told)


def _logits(change: Callable[[Tensor], Tensor]) -> Hook:
    def hook(engine: TorchEngine, scene: "Scene") -> None:
        execute = engine._runner.execute
        scene.monkeypatch.setattr(engine._runner, "execute", lambda items: change(execute(items)))

    return hook


# Memory: what was hashed is not what computes


def memory(change: Callable[[Any], object]) -> Hook:
    def hook(engine: TorchEngine, _: "Scene") -> None:
        with torch.no_grad():
            change(engine._runner._model)

    return hook


def _merged_again(engine: TorchEngine, scene: "Scene") -> None:
    from pratique_server.engine.adapters import merge_adapters

    merge_adapters(engine._runner._model, scene.spec().model)


def _one_adapter_lost(engine: TorchEngine, scene: "Scene") -> None:
    from pratique_server.engine.loader import load_model

    source = scene.spec().model
    other = load_model(source.model_copy(update={"adapters": source.adapters[:1]}))
    engine._runner._model.load_state_dict(other.model.state_dict())


def _set(path: str, value: Any) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        *parents, last = path.split(".")
        for parent in parents:
            model = model[int(parent)] if parent.isdigit() else getattr(model, parent)
        setattr(model, last, value(getattr(model, last)))

    return change


def _embedding_of_a_prompt_token(model: Any) -> None:
    model.get_input_embeddings().weight[1].zero_()  # the beginning of a turn: in every prompt


# Events, ends and counts inside the engine


def _on_step(engine: TorchEngine, scene: "Scene", change: Callable[[StepOutput], StepOutput]) -> None:
    step = engine.step
    scene.monkeypatch.setattr(engine, "step", lambda: change(step()))


def events(change: Callable[[Any, int], list[Any]]) -> Hook:
    """Replace each event by those that ``change`` makes of it; it is told the event's number within its request."""

    def hook(engine: TorchEngine, scene: "Scene") -> None:
        seen: dict[str, int] = {}

        def faulty(output: StepOutput) -> StepOutput:
            events = []
            for event in output.events:
                number = seen[event.request_id] = seen.get(event.request_id, 0) + 1
                events += change(event, number)
            return StepOutput(events=events, failures=output.failures)

        _on_step(engine, scene, faulty)

    return hook


def _with(event: Any, **fields: Any) -> Any:
    return msgspec.structs.replace(event, **fields)


def _swapped_finish(event: Any, _: int) -> list[Any]:
    other = {FinishReason.STOP: FinishReason.LENGTH, FinishReason.LENGTH: FinishReason.STOP}
    return [_with(event, finish=other.get(event.finish))]


def finish_after(count: int) -> Callable[[Any, int], list[Any]]:
    def change(event: Any, number: int) -> list[Any]:
        if number > count:
            return []
        return [_with(event, finish=FinishReason.LENGTH) if number == count else event]

    return change


def _requests(change: Callable[[Any], Any]) -> Hook:
    def hook(engine: TorchEngine, scene: "Scene") -> None:
        add = engine.add_request
        scene.monkeypatch.setattr(engine, "add_request", lambda request: add(change(request)))

    return hook


def _stop_at_a_golden_token(engine: TorchEngine, scene: "Scene") -> None:
    """The stop ids of another request are taken for this one's too."""
    token = scene.record.golden.cases[0].outputs[0].ids[2]
    _requests(lambda request: _with(request, stop_token_ids=[*request.stop_token_ids, token]))(engine, scene)


def _slow(engine: TorchEngine, scene: "Scene") -> None:
    def wait(output: StepOutput) -> StepOutput:
        time.sleep(0.4)
        return output

    _on_step(engine, scene, wait)


def _never_steps(engine: TorchEngine, scene: "Scene") -> None:
    scene.monkeypatch.setattr(engine, "has_work", lambda: False)


def _dies(engine: TorchEngine, scene: "Scene") -> None:
    def die(_: StepOutput) -> StepOutput:
        raise RuntimeError("device-side assert triggered")

    _on_step(engine, scene, die)


def _leaks(engine: TorchEngine, scene: "Scene") -> None:
    """One block of every request is never given back, in an engine that does not audit itself."""
    free = engine._kv.free

    def faulty(request_id: str) -> None:
        engine._kv._tables[request_id] = list(engine._kv._tables.get(request_id, []))[1:]
        free(request_id)

    scene.monkeypatch.setattr(engine._kv, "free", faulty)
    scene.monkeypatch.setattr(engine, "check_integrity", lambda: None)


def _miscounts(engine: TorchEngine, scene: "Scene") -> None:
    stats = engine.stats
    scene.monkeypatch.setattr(engine, "stats", lambda: _with(stats(), blocks_free=stats().blocks_free - 1))


def _fault(
    name: str, arrange: Hook | Arrange, *, reason: Reason = Reason.OUTPUT_MISMATCH, bug: str = "", base: str = "tiny"
) -> Fault:
    return Fault(part="computation", name=name, reason=reason, arrange=engine(arrange), bug=bug, base=base)  # type: ignore[arg-type]


def _silent(name: str, hook: Hook, *, bug: str = "") -> Fault:
    return Fault(
        part="computation",
        name=name,
        reason=Reason.PROBE_TIMEOUT,
        arrange=all_of(engine(hook), declared(probe_timeout_seconds=SILENCE_SECONDS)),
        bug=bug,
    )


_LAYER: Final = "model.layers.{}.{}"

FAULTS: Final = (
    _fault("K/V of the first block lost once a sequence is longer", lost_block(16)),
    _fault("K/V of the third block lost once a sequence is longer", lost_block(48)),
    _fault("K/V lost after 256 tokens", lost_block(256)),
    _fault("K/V lost after 512 tokens, one key tile", lost_block(512)),
    _fault("K/V of the newest block lost in decode", _on_write(_lost_in_decode)),
    _fault("K/V of a chunk's last block lost in the next chunk", _on_write(_lost_between_chunks), bug="transformers PR#45943"),
    _fault("K/V written one slot too early in decode", _slot_off_by_one),
    _fault("K/V of layer 0 read by layer 1", _layers_mixed_up),
    _fault("K/V of another release in the prefix cache", _on_write(_of_another_release), bug="LLMKube#619"),
    _fault("K/V of another prompt in the prefix cache", _of_another_prompt, bug="GHSA-rm76-4mrf-v9r8"),
    _fault("positions shifted after the first block", _positions(_after(16))),
    _fault("positions shifted after 64 tokens", _positions(_after(64))),
    _fault("positions shifted after 512 tokens", _positions(_after(512))),
    _fault("positions start at one", _positions(lambda position: position + 1 if position else 0)),
    _fault("all positions zero", _positions(lambda position: 0)),
    _fault("the newest key hidden in decode", _masks(_hide_newest)),
    _fault("the future shown in prefill", _masks(_show_future)),
    _fault("a window of 24 tokens that the model does not have", _masks(_window)),
    _fault("logits of a batch neighbour", _logits_of_neighbours, bug="vllm#10583"),
    _fault("cache shared with a batch neighbour", _cache_of_neighbours, bug="pytorch#194167"),
    _fault("sampling rules of every batch neighbour", _rules_of(lambda sequences: sequences), bug="vllm#54195"),
    _fault("sampling rules of the oldest batch neighbour", _rules_of(lambda sequences: sequences[:1]), bug="vllm#54195"),
    _fault("sampling rules of the newest batch neighbour", _rules_of(lambda sequences: sequences[-1:]), bug="vllm#54195"),
    _fault("stop ids of a live neighbour", _stop_ids_of_neighbours, bug="vllm#54195"),
    _fault("answers of two requests exchanged", _events_of_neighbours, bug="vllm PR#27987"),
    _fault("runner-up chosen at the sixth token", _sampling(_runner_up)),
    _fault("a draft token accepted without a look", _sampling(_draft_accepted)),
    _fault("greedy requests sampled", _sampling(_hot)),
    _fault("a repetition penalty that nobody asked for", _sampling(_penalized)),
    _fault("the end of turn never chosen", _sampling(_never_stops), bug="vllm-mlx#628"),
    _fault("log-probabilities all zero", _lie(lambda row, value: 0.0)),
    _fault("log-probabilities halved", _lie(lambda row, value: value / 2)),
    _fault("log-probabilities of a hotter distribution", _lie(lambda row, _: float(torch.log_softmax(row / 2, -1).max()))),
    _fault("log-probabilities as raw logits", _lie(lambda row, _: float(row.max()))),
    _fault("log-probabilities in bits instead of nats", _lie(lambda row, value: value * 1.4427)),
    _fault("logits soft-capped", _logits(lambda logits: 30 * torch.tanh(logits / 30))),
    _fault("logits not a number", _logits(lambda logits: logits * float("nan")), reason=Reason.STREAM_BROKEN, bug="vllm#10234"),
    _fault("weights rounded to bfloat16 in memory", memory(lambda model: [
        parameter.copy_(parameter.to(torch.bfloat16)) for parameter in model.parameters()])),
    _fault("the scale of one layer not applied", memory(lambda model: model.get_submodule(
        _LAYER.format(0, "mlp.down_proj")).weight.mul_(0.5))),
    _fault("one projection's sign flipped in memory", memory(lambda model: model.get_submodule(
        _LAYER.format(1, "self_attn.v_proj")).weight.neg_())),
    _fault("one MLP switched off in memory", memory(lambda model: model.get_submodule(
        _LAYER.format(1, "mlp.down_proj")).weight.zero_())),
    _fault("the head tied to the embedding in memory", memory(lambda model: model.lm_head.weight.copy_(
        model.get_input_embeddings().weight))),
    _fault("one embedding row zeroed in memory", memory(_embedding_of_a_prompt_token)),
    _fault("rope frequencies off in memory", memory(lambda model: model.model.rotary_emb.inv_freq.mul_(1.1))),
    _fault("attention scaled otherwise", memory(_set("model.layers.0.self_attn.scaling", lambda value: value * 1.2))),
    _fault("another activation in memory", memory(_set("model.layers.0.mlp.act_fn", lambda _: torch.nn.GELU()))),
    _fault("another norm epsilon in memory", memory(_set("model.norm.variance_epsilon", lambda _: 0.5))),
    _fault("adapters merged twice in memory", _merged_again, base="adapted"),
    _fault("one adapter lost in memory", _one_adapter_lost, base="adapted"),
    _fault("scales of one int8 layer missing", memory(lambda model: model.get_submodule(
        _LAYER.format(0, "self_attn.o_proj")).scale.fill_(1.0)), base="int8"),
    _fault("one int8 layer's zero point off by one", memory(lambda model: model.get_submodule(
        _LAYER.format(0, "mlp.up_proj")).weight_int8.add_(1)), base="int8"),
    _fault("a token dropped", events(lambda event, number: [] if number == 3 else [event])),
    _fault("a token given twice", events(lambda event, number: [event] * (2 if number == 3 else 1)), bug="vllm#41190"),
    _fault("an answer ends one token early", _requests(lambda request: _with(
        request, max_new_tokens=request.max_new_tokens - 1))),
    _fault("an answer ends one token late", _requests(lambda request: _with(
        request, max_new_tokens=request.max_new_tokens + 1))),
    _fault("an answer ends after three tokens", events(finish_after(3))),
    _fault("the stop id is not known", _requests(lambda request: _with(request, stop_token_ids=[]))),
    _fault("another request's stop id ends the answer", _stop_at_a_golden_token, bug="vllm#54195"),
    _fault("stop and length exchanged", events(_swapped_finish)),
    _fault("only the end of the prompt is computed", _requests(lambda request: _with(
        request, prompt_ids=request.prompt_ids[-24:])), bug="ollama#2208"),
    _fault("a BOS too many in the engine", _requests(lambda request: _with(
        request, prompt_ids=[1, *request.prompt_ids])), bug="vllm#2012"),
    _fault("a block of every request leaks", _leaks, reason=Reason.BLOCKS_LEAKED, bug="vllm#46283"),
    _fault("block counts that contradict each other", _miscounts, reason=Reason.BLOCKS_LEAKED),
    _fault("the engine dies at the first step", _dies, reason=Reason.ENGINE_UNREACHABLE, bug="vllm#36960"),
    _silent("an answer never ends", events(lambda event, _: [_with(event, finish=None)]), bug="vllm-metal#199"),
    _silent("the engine takes requests and does nothing", _never_steps, bug="vllm#36960"),
    _silent("the engine is far too slow", _slow),
)  # fmt: skip

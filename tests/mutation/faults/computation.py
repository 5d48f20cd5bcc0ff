"""The right release, computed wrongly: sampling, log-probabilities, memory, ends and counts. Every digest is the approved one.

Each fault is put into the engine after it has loaded, so that neither the manifest nor the load-time self-check can know: only
the golden cases, through the whole path, can. What is wrong about K/V, positions, masks and batches is in ``cache``.
"""

import time
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from pratique_contract.reasons import Reason
from pratique_server.engine.protocol import FinishReason, TokenLogprobs
from pratique_server.engine.step_engine import StepOutput
from pratique_server.engine.torch_engine import engine as torch_engine
from pratique_server.engine.torch_engine.engine import TorchEngine
from pratique_server.engine.torch_engine.sampler import Sampled
from tests.mutation.fault import Fault, Hook, all_of, declared, engine
from tests.mutation.faults import cache
from tests.mutation.faults.hooks import changed, on_requests, on_step, wrong
from tests.mutation.scene import Scene

BLOCK: Final = 16
# Long enough for an answer, short enough to wait out the faults that end in silence.
SILENCE_SECONDS: Final = 3.0


# Sampling and log-probabilities


def _sampling(change: Callable[[Tensor, Any, Sampled], Sampled]) -> Hook:
    """After a token was chosen: ``change`` gets its row of logits and its sequence, and may choose another."""

    def hook(_: TorchEngine, scene: Scene) -> None:
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
    def hook(engine: TorchEngine, scene: Scene) -> None:
        execute = engine._runner.execute
        scene.monkeypatch.setattr(engine._runner, "execute", lambda items: change(execute(items)))

    return hook


# Memory: what was hashed is not what computes


def memory(change: Callable[[Any], object]) -> Hook:
    def hook(engine: TorchEngine, _: Scene) -> None:
        with torch.no_grad():
            change(engine._runner._model)

    return hook


def _merged_again(engine: TorchEngine, scene: Scene) -> None:
    from pratique_server.engine.adapters import merge_adapters

    merge_adapters(engine._runner._model, scene.spec().model)


def _one_adapter_lost(engine: TorchEngine, scene: Scene) -> None:
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


def events(change: Callable[[Any, int], list[Any]]) -> Hook:
    """Replace each event by those that ``change`` makes of it; it is told the event's number within its request."""

    def hook(engine: TorchEngine, scene: Scene) -> None:
        seen: dict[str, int] = {}

        def faulty(output: StepOutput) -> StepOutput:
            events = []
            for event in output.events:
                number = seen[event.request_id] = seen.get(event.request_id, 0) + 1
                events += change(event, number)
            return StepOutput(events=events, failures=output.failures)

        on_step(engine, scene, faulty)

    return hook


def _swapped_finish(event: Any, _: int) -> list[Any]:
    other = {FinishReason.STOP: FinishReason.LENGTH, FinishReason.LENGTH: FinishReason.STOP}
    return [changed(event, finish=other.get(event.finish))]


def finish_after(count: int) -> Callable[[Any, int], list[Any]]:
    def change(event: Any, number: int) -> list[Any]:
        if number > count:
            return []
        return [changed(event, finish=FinishReason.LENGTH) if number == count else event]

    return change


def _stop_at_a_golden_token(engine: TorchEngine, scene: Scene) -> None:
    """The stop ids of another request are taken for this one's too."""
    token = scene.record.golden.cases[0].outputs[0].ids[2]
    on_requests(lambda request: changed(request, stop_token_ids=[*request.stop_token_ids, token]))(engine, scene)


def _slow(engine: TorchEngine, scene: Scene) -> None:
    def wait(output: StepOutput) -> StepOutput:
        time.sleep(0.4)
        return output

    on_step(engine, scene, wait)


def _never_steps(engine: TorchEngine, scene: Scene) -> None:
    scene.monkeypatch.setattr(engine, "has_work", lambda: False)


def _dies(engine: TorchEngine, scene: Scene) -> None:
    def die(_: StepOutput) -> StepOutput:
        raise RuntimeError("device-side assert triggered")

    on_step(engine, scene, die)


def _leaks(engine: TorchEngine, scene: Scene) -> None:
    """One block of every request is never given back, in an engine that does not audit itself."""
    free = engine._kv.free

    def faulty(request_id: str) -> None:
        engine._kv._tables[request_id] = list(engine._kv._tables.get(request_id, []))[1:]
        free(request_id)

    scene.monkeypatch.setattr(engine._kv, "free", faulty)
    scene.monkeypatch.setattr(engine, "check_integrity", lambda: None)


def _miscounts(engine: TorchEngine, scene: Scene) -> None:
    stats = engine.stats
    scene.monkeypatch.setattr(engine, "stats", lambda: changed(stats(), blocks_free=stats().blocks_free - 1))


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
    *cache.FAULTS,
    wrong("runner-up chosen at the sixth token", _sampling(_runner_up)),
    wrong("a draft token accepted without a look", _sampling(_draft_accepted)),
    wrong("greedy requests sampled", _sampling(_hot)),
    wrong("a repetition penalty that nobody asked for", _sampling(_penalized)),
    wrong("the end of turn never chosen", _sampling(_never_stops), bug="vllm-mlx#628"),
    wrong("log-probabilities all zero", _lie(lambda row, value: 0.0)),
    wrong("log-probabilities halved", _lie(lambda row, value: value / 2)),
    wrong("log-probabilities of a hotter distribution", _lie(lambda row, _: float(torch.log_softmax(row / 2, -1).max()))),
    wrong("log-probabilities as raw logits", _lie(lambda row, _: float(row.max()))),
    wrong("log-probabilities in bits instead of nats", _lie(lambda row, value: value * 1.4427)),
    wrong("logits soft-capped", _logits(lambda logits: 30 * torch.tanh(logits / 30))),
    wrong("logits not a number", _logits(lambda logits: logits * float("nan")), reason=Reason.STREAM_BROKEN, bug="vllm#10234"),
    wrong("weights rounded to bfloat16 in memory", memory(lambda model: [
        parameter.copy_(parameter.to(torch.bfloat16)) for parameter in model.parameters()])),
    wrong("the scale of one layer not applied", memory(lambda model: model.get_submodule(
        _LAYER.format(0, "mlp.down_proj")).weight.mul_(0.5))),
    wrong("one projection's sign flipped in memory", memory(lambda model: model.get_submodule(
        _LAYER.format(1, "self_attn.v_proj")).weight.neg_())),
    wrong("one MLP switched off in memory", memory(lambda model: model.get_submodule(
        _LAYER.format(1, "mlp.down_proj")).weight.zero_())),
    wrong("the head tied to the embedding in memory", memory(lambda model: model.lm_head.weight.copy_(
        model.get_input_embeddings().weight))),
    wrong("one embedding row zeroed in memory", memory(_embedding_of_a_prompt_token)),
    wrong("rope frequencies off in memory", memory(lambda model: model.model.rotary_emb.inv_freq.mul_(1.1))),
    wrong("attention scaled otherwise", memory(_set("model.layers.0.self_attn.scaling", lambda value: value * 1.2))),
    wrong("another activation in memory", memory(_set("model.layers.0.mlp.act_fn", lambda _: torch.nn.GELU()))),
    wrong("another norm epsilon in memory", memory(_set("model.norm.variance_epsilon", lambda _: 0.5))),
    wrong("adapters merged twice in memory", _merged_again, base="adapted"),
    wrong("one adapter lost in memory", _one_adapter_lost, base="adapted"),
    wrong("scales of one int8 layer missing", memory(lambda model: model.get_submodule(
        _LAYER.format(0, "self_attn.o_proj")).scale.fill_(1.0)), base="int8"),
    wrong("one int8 layer's zero point off by one", memory(lambda model: model.get_submodule(
        _LAYER.format(0, "mlp.up_proj")).weight_int8.add_(1)), base="int8"),
    wrong("a token dropped", events(lambda event, number: [] if number == 3 else [event])),
    wrong("a token given twice", events(lambda event, number: [event] * (2 if number == 3 else 1)), bug="vllm#41190"),
    wrong("an answer ends one token early", on_requests(lambda request: changed(
        request, max_new_tokens=request.max_new_tokens - 1))),
    wrong("an answer ends one token late", on_requests(lambda request: changed(
        request, max_new_tokens=request.max_new_tokens + 1))),
    wrong("an answer ends after three tokens", events(finish_after(3))),
    wrong("the stop id is not known", on_requests(lambda request: changed(request, stop_token_ids=[]))),
    wrong("another request's stop id ends the answer", _stop_at_a_golden_token, bug="vllm#54195"),
    wrong("stop and length exchanged", events(_swapped_finish)),
    wrong("only the end of the prompt is computed", on_requests(lambda request: changed(
        request, prompt_ids=request.prompt_ids[-24:])), bug="ollama#2208"),
    wrong("a BOS too many in the engine", on_requests(lambda request: changed(
        request, prompt_ids=[1, *request.prompt_ids])), bug="vllm#2012"),
    wrong("a block of every request leaks", _leaks, reason=Reason.BLOCKS_LEAKED, bug="vllm#46283"),
    wrong("block counts that contradict each other", _miscounts, reason=Reason.BLOCKS_LEAKED),
    wrong("the engine dies at the first step", _dies, reason=Reason.ENGINE_UNREACHABLE, bug="vllm#36960"),
    _silent("an answer never ends", events(lambda event, _: [changed(event, finish=None)]), bug="vllm-metal#199"),
    _silent("the engine takes requests and does nothing", _never_steps, bug="vllm#36960"),
    _silent("the engine is far too slow", _slow),
)  # fmt: skip

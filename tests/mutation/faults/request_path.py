"""Wrong code between engine and socket: detokenizer, counts, headers, caches and defaults of the request path, and honest-looking lies.

The files are the approved ones and the engine computes rightly (but for the liars at the end); what stands between them is wrong.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Final

import msgspec

from pratique_contract.reasons import Reason
from pratique_server.api import pipeline
from pratique_server.api.answer import Answer, Piece, PieceMerger
from pratique_server.api.state import ApiState, Release
from pratique_server.engine import build, identity
from pratique_server.engine.protocol import TokenLogprobs
from pratique_server.engine.torch_engine import engine as torch_engine
from pratique_server.engine.torch_engine.sampler import Sampled
from pratique_server.text.detokenizer import Detokenizer
from pratique_server.text.renderer import Renderer
from pratique_server.text.template import ChatTemplate
from pratique_server.text.tokenizer import Tokenizer
from tests.mutation.fault import Arrange, Fault, patched
from tests.mutation.faults.texts import tokenizer
from tests.mutation.faults.weights import KINDS, fill
from tests.mutation.scene import Scene
from tests.support.models import CHATML
from tests.support.mutations import copy_of


def _usage(change: Callable[[Any], dict[str, int]]) -> property:
    getter = Answer.usage.fget
    assert getter is not None

    def usage(self: Answer) -> Any:
        counts = getter(self)
        return dataclasses.replace(counts, **change(counts))

    return property(usage)


def _each_token_alone(self: Detokenizer, ids: Any) -> str:
    return "".join(self._tokenizer.decode([token]).lstrip(" ") for token in ids)


def _spaces_collapsed(self: Tokenizer, ids: Any, *, skip_special_tokens: bool = True) -> str:
    text = str(self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens))
    return text.replace(" ", "", 1) if " " in text[3:] else text


def _specials_shown(self: Detokenizer, ids: Any) -> str:
    return "".join(self._tokenizer.decode([token], skip_special_tokens=False) for token in ids) + "<|im_end|>"


def _merger_that_forgets(self: PieceMerger, piece: Piece) -> list[Piece]:
    """The text that comes with the finish is dropped."""
    pieces = _ADD(self, piece)
    if piece.finish is not None and len(pieces) == 2:
        pieces[0].text = pieces[0].text[:-1]
    return [one for one in pieces if one.text or one.finish]


_ADD: Final = PieceMerger.add


def _stop_token_not_counted(self: Answer, event: Any) -> Piece:
    piece = _PUSH(self, event)
    if event.finish is not None:
        self._completion_tokens -= 1
    return piece


_PUSH: Final = Answer.push


def stale_state(make: Callable[[Any, Scene], Any]) -> Arrange:
    """The request path keeps a renderer of its own that is not the one the gate looks at."""

    def arrange(scene: Scene) -> None:
        def state(**fields: Any) -> ApiState:
            return ApiState(**{**fields, "renderer": make(fields["renderer"], scene)})

        scene.monkeypatch.setattr("pratique_server.serve.ApiState", state)

    return arrange


def _stale_template(text: str) -> Callable[[Any, Scene], Renderer]:
    return lambda renderer, _: Renderer(ChatTemplate(text), renderer.tokenizer)


def _stale_tokenizer(renderer: Any, scene: Scene) -> Renderer:
    folder = copy_of(scene.base.folder, scene.room / "stale", tokenizer(lambda value: value["model"]["merges"].pop(0)))
    return Renderer(renderer.template, Tokenizer.load(folder))


class _OtherMessages(Renderer):
    """Passes other messages to the template than the request holds."""

    change: Callable[[Any], Any] = staticmethod(lambda messages: messages)

    def render(self, messages: Any, tools: Any = None, *, add_generation_prompt: bool = True) -> Any:
        return super().render(type(self).change(messages), tools, add_generation_prompt=add_generation_prompt)


def _messages(change: Callable[[Any], Any]) -> Callable[[Any, Scene], Renderer]:
    changed = type("_Changed", (_OtherMessages,), {"change": staticmethod(change)})
    return lambda renderer, _: changed(renderer.template, renderer.tokenizer)


def _truncated(renderer: Any, _: Scene) -> Renderer:
    class Truncating(Renderer):
        def render(self, messages: Any, tools: Any = None, *, add_generation_prompt: bool = True) -> Any:
            rendered = super().render(messages, tools, add_generation_prompt=add_generation_prompt)
            return dataclasses.replace(rendered, ids=rendered.ids[-24:])

    return Truncating(renderer.template, renderer.tokenizer)


def _release_that_says(fingerprint: str) -> Any:
    of = Release.of
    return classmethod(lambda cls, *args, **fields: dataclasses.replace(of(*args, **fields), fingerprint=fingerprint))


def _pipeline(name: str, change: Callable[[Any], Any]) -> Arrange:
    """A function of the request pipeline whose result is changed."""
    original = getattr(pipeline, name)
    return patched(f"pratique_server.api.pipeline.{name}", lambda *args, **fields: change(original(*args, **fields)))


def _rules(**fields: Any) -> Callable[[Any], Any]:
    return lambda rules: msgspec.structs.replace(rules, **fields)


def _recorded_answers(scene: Scene) -> None:
    """An engine that answers golden prompts from the record, over weights that are not the approved ones."""
    fill(KINDS["o projection"].format(1), bytes)(scene.folder)
    scene.engine_hooks.append(_replay)


def _replay(engine: Any, scene: Scene) -> None:
    known = {case.prompt_ids: case.outputs[0] for case in scene.record.golden.cases}
    sample = torch_engine.sample

    def replay(logits: Any, sequences: list[Any]) -> list[Any]:
        results = []
        for sequence, sampled in zip(sequences, sample(logits, sequences), strict=True):
            output = known.get(tuple(sequence.request.prompt_ids))
            if output is None or sequence.num_output >= len(output.ids):
                results.append(sampled)
                continue
            told = TokenLogprobs(chosen=output.logprobs[sequence.num_output])
            results.append(Sampled(output.ids[sequence.num_output], told))
        return results

    scene.monkeypatch.setattr(torch_engine, "sample", replay)


def _lying_manifest(scene: Scene) -> None:
    """The engine names the approved files and has loaded others."""
    fill(KINDS["o projection"].format(1), bytes)(scene.folder)
    approved = {entry.path: entry for entry in scene.record.manifest.model.files}

    def lying(*args: Any, **fields: Any) -> Any:
        told = identity.make_identity(*args, **fields)
        files = [
            msgspec.structs.replace(file, sha256=approved[file.path].sha256, size=approved[file.path].size)
            for file in told.model_files
        ]
        return msgspec.structs.replace(told, model_files=files)

    scene.monkeypatch.setattr(build, "make_identity", lying)


def _path(name: str, reason: Reason, arrange: Arrange, *, bug: str = "") -> Fault:
    return Fault(part="request path", name=name, reason=reason, arrange=arrange, bug=bug)


_ANSWER, _TEXT = "pratique_server.api.answer.Answer", "pratique_server.text"

FAULTS: Final = (
    _path("completion tokens counted twice", Reason.STREAM_BROKEN, patched(
        f"{_ANSWER}.usage", _usage(lambda counts: {"completion": 2 * counts.completion})), bug="vllm-omni PR#2313"),
    _path("the last token not counted", Reason.STREAM_BROKEN, patched(f"{_ANSWER}.push", _stop_token_not_counted), bug="lmstudio#2335"),
    _path("prompt tokens counted without the template", Reason.STREAM_BROKEN, patched(
        f"{_ANSWER}.usage", _usage(lambda counts: {"prompt": counts.prompt - 3}))),
    _path("leading spaces lost while detokenizing", Reason.STREAM_BROKEN, patched(
        f"{_TEXT}.detokenizer.Detokenizer.push", _each_token_alone)),
    _path("special tokens shown", Reason.STREAM_BROKEN, patched(f"{_TEXT}.detokenizer.Detokenizer.push", _specials_shown)),
    _path("spaces lost wherever ids become text", Reason.OUTPUT_MISMATCH, patched(
        f"{_TEXT}.tokenizer.Tokenizer.decode", _spaces_collapsed)),
    _path("the end of the text dropped with the finish", Reason.STREAM_BROKEN, patched(
        "pratique_server.api.answer.PieceMerger.add", _merger_that_forgets), bug="vllm#35705"),
    _path("a stale template in the request path", Reason.TEMPLATE_MISMATCH, stale_state(
        _stale_template(CHATML.replace("helpful", "harmless"))), bug="LLMKube#619"),
    _path("a stale tokenizer in the request path", Reason.TOKENIZER_MISMATCH, stale_state(_stale_tokenizer), bug="LLMKube#619"),
    _path("the default system prompt left out in the request path", Reason.TEMPLATE_MISMATCH, stale_state(
        _messages(lambda messages: [{"role": "system", "content": ""}, *messages]))),
    _path("only the last message kept", Reason.TEMPLATE_MISMATCH, stale_state(_messages(
        lambda messages: [{**messages[-1], "content": messages[-1]["content"][:8]}])), bug="mlx-openai-server PR#205"),
    _path("long prompts cut in silence", Reason.TOKENIZER_MISMATCH, stale_state(_truncated), bug="ollama#2208"),
    _path("a default repetition penalty over the request's", Reason.OUTPUT_MISMATCH, _pipeline(
        "build_sampling", _rules(repetition_penalty=1.8))),
    _path("a default temperature over the request's", Reason.OUTPUT_MISMATCH, _pipeline(
        "build_sampling", _rules(temperature=4.0, seed=1))),
    _path("a logit bias that nobody asked for", Reason.OUTPUT_MISMATCH, _pipeline(
        "build_sampling", _rules(logit_bias={40: 60.0}))),
    _path("a default length under the request's", Reason.OUTPUT_MISMATCH, _pipeline(
        "budget_tokens", lambda tokens: min(tokens, 4)), bug="vllm#6707"),
    _path("the release's stop ids not passed on", Reason.OUTPUT_MISMATCH, _pipeline("stop_ids", lambda ids: [])),
    _path("the fingerprint of the release before", Reason.STREAM_BROKEN, patched(
        "pratique_server.api.state.Release.of", _release_that_says("sha256:" + "b" * 64)), bug="LLMKube#1767"),
    _path("recorded answers replayed over other weights", Reason.MODEL_MISMATCH, _recorded_answers),
    _path("a manifest that names the approved files over other weights", Reason.OUTPUT_MISMATCH, _lying_manifest),
)  # fmt: skip

"""Wrong tokenizer, template and special tokens: what turns messages into ids, and what ends an answer.

None of it shows in a model file, a version or a health check; most of it shows only as answers that are a little worse.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from pratique_contract.reasons import Reason
from tests.mutation.fault import Arrange, Fault, declared, files, patched
from tests.mutation.faults.weights import config
from tests.support.models import CHATML
from tests.support.mutations import Mutation, copy_of, edit_json, remove_last_merge, replace, swap_two_tokens

TOKENIZER, TOKENIZER_CONFIG, GENERATION = "tokenizer.json", "tokenizer_config.json", "generation_config.json"


def tokenizer(edit: Callable[[dict[str, Any]], Any]) -> Mutation:
    return lambda folder: edit_json(folder / TOKENIZER, edit)


def settings(**fields: Any) -> Mutation:
    return lambda folder: edit_json(folder / TOKENIZER_CONFIG, lambda value: value.update(fields))


def generation(**fields: Any) -> Mutation:
    return lambda folder: edit_json(folder / GENERATION, lambda value: value.update(fields))


def template(*replacements: tuple[str, str]) -> Mutation:
    """Replace text in the template; each piece has to be there."""

    def edit(value: dict[str, Any]) -> None:
        for old, new in replacements:
            assert old in value["chat_template"]
            value["chat_template"] = value["chat_template"].replace(old, new)

    return lambda folder: edit_json(folder / TOKENIZER_CONFIG, edit)


def _swap_merges(value: dict[str, Any]) -> None:
    merges = value["model"]["merges"]
    merges[10], merges[11] = merges[11], merges[10]


def _added(**fields: Any) -> Callable[[dict[str, Any]], None]:
    """Change the entry of the last special token."""
    return lambda value: value["added_tokens"][-1].update(fields)


def _one_more_token(value: dict[str, Any]) -> None:
    new = {**value["added_tokens"][-1], "id": len(value["model"]["vocab"]), "content": "<|tool|>"}
    value["added_tokens"].append(new)


def _swap_specials(value: dict[str, Any]) -> None:
    """Beginning and end of a turn under each other's id."""
    for entry in value["added_tokens"]:
        entry["id"] = {1: 2, 2: 1}.get(entry["id"], entry["id"])
    vocab = value["model"]["vocab"]
    vocab["<|im_start|>"], vocab["<|im_end|>"] = vocab["<|im_end|>"], vocab["<|im_start|>"]


def _part(name: str, value: Any) -> Mutation:
    return tokenizer(lambda whole: whole.update({name: value}))


def _add_prefix_space(value: dict[str, Any]) -> None:
    value["pre_tokenizer"]["add_prefix_space"] = True


_BOS_PROCESSOR: Final = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {"<|im_start|>": {"id": "<|im_start|>", "ids": [1], "tokens": ["<|im_start|>"]}},
}


def _slow_class(folder: Path) -> None:
    """The folder's model type chooses another tokenizer class, with other rules for the same files."""
    settings(tokenizer_class=None)(folder)
    edit_json(folder / "config.json", lambda value: value.update(model_type="qwen2"))


def _other_folder(*mutations: Mutation) -> Arrange:
    """The right model, with the tokenizer of another revision from a folder of its own."""

    def arrange(scene: Any) -> None:
        folder = copy_of(scene.base.folder, scene.room / "tokenizer")
        for mutation in mutations:
            mutation(folder)
        scene.declare(tokenizer={"path": str(folder), "uri": f"file://{folder}"})

    return arrange


def _encode_with_special_tokens(self: Any, text: str) -> list[int]:
    """vllm#2012: the template writes the beginning of the sequence, and the tokenizer adds another."""
    return [1, *self._backend.encode(text, add_special_tokens=True).ids]


def _fault(part: str, reason: Reason) -> Callable[..., Fault]:
    def make(name: str, change: Mutation | Arrange, *, bug: str = "", arranged: bool = False) -> Fault:
        arrange: Any = change if arranged else files(change)  # type: ignore[arg-type]
        return Fault(part=part, name=name, reason=reason, arrange=arrange, bug=bug)

    return make


_tok = _fault("tokenizer", Reason.TOKENIZER_MISMATCH)
_tmpl = _fault("chatTemplate", Reason.TEMPLATE_MISMATCH)
_spec = _fault("specialTokens", Reason.SPECIAL_TOKENS_MISMATCH)

_TOKENIZER: Final = (
    _tok("last merge missing", remove_last_merge),
    _tok("two merges swapped", tokenizer(_swap_merges)),
    _tok("two ordinary tokens swapped", swap_two_tokens),
    _tok("begin and end of turn swapped", tokenizer(_swap_specials)),
    _tok("one added token more", tokenizer(_one_more_token)),
    _tok("end of turn is not special", tokenizer(_added(special=False))),
    _tok("end of turn swallows white space before it", tokenizer(_added(lstrip=True))),
    _tok("end of turn swallows white space after it", tokenizer(_added(rstrip=True))),
    _tok("end of turn is normalized", tokenizer(_added(normalized=True))),
    _tok("end of turn matches whole words only", tokenizer(_added(single_word=True))),
    _tok("normalizer NFKC", _part("normalizer", {"type": "NFKC"})),
    _tok("normalizer lower case", _part("normalizer", {"type": "Lowercase"})),
    _tok("pre-tokenizer adds a leading space", tokenizer(_add_prefix_space)),
    _tok("pre-tokenizer splits digits", tokenizer(lambda value: value.update(pre_tokenizer={
        "type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, value["pre_tokenizer"]]}))),
    _tok("pre-tokenizer without its pattern", tokenizer(lambda value: value["pre_tokenizer"].update(use_regex=False))),
    _tok("decoder of another kind", _part("decoder", {"type": "Fuse"})),
    _tok("decoder strips spaces", _part("decoder", {"type": "Sequence", "decoders": [
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0}]})),
    _tok("post-processor adds BOS", _part("post_processor", _BOS_PROCESSOR), bug="vllm#2012"),
    _tok("merges are skipped for whole words", tokenizer(lambda value: value["model"].update(ignore_merges=True))),
    _tok("byte fallback", tokenizer(lambda value: value["model"].update(byte_fallback=True))),
    _tok("dropout", tokenizer(lambda value: value["model"].update(dropout=0.1))),
    _tok("spaces cleaned up while decoding", settings(clean_up_tokenization_spaces=True)),
    _tok("vocabulary file of another revision beside it", lambda folder: replace(
        folder / "vocab.json", json.dumps({"<unk>": 0}).encode())),
    _tok("special tokens map of another revision beside it", lambda folder: replace(
        folder / "special_tokens_map.json", json.dumps({"additional_special_tokens": ["<|tool|>"]}).encode())),
    _tok("no tokenizer.json", lambda folder: (folder / TOKENIZER).unlink()),
    _tok("tokenizer.json cut in the middle", lambda folder: replace(
        folder / TOKENIZER, (folder / TOKENIZER).read_bytes()[:9000])),
    _tok("another revision in a folder of its own", _other_folder(swap_two_tokens), arranged=True, bug="LLMKube#619"),
    _tok("BOS put before every prompt", patched(
        "pratique_server.text.tokenizer.Tokenizer.encode", _encode_with_special_tokens), arranged=True, bug="vllm#2012"),
)  # fmt: skip

_ASSISTANT: Final = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
_HELPFUL: Final = "You are a helpful assistant."

_TEMPLATE: Final = (
    _tmpl("one letter of the default system prompt", template(("helpful", "helpfuI"))),
    _tmpl("default system prompt missing", template(
        ("{{ '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}", ""))),
    _tmpl("default system prompt of another model", template((_HELPFUL, "You are Qwen, created by Alibaba Cloud."))),
    _tmpl("default system prompt before every system prompt", template(
        ("{% if loop.first and message['role'] != 'system' %}", "{% if loop.first %}"))),
    _tmpl("a space before the content", template(("'\\n' + message['content']", "'\\n ' + message['content']"))),
    _tmpl("a trailing newline", template((_ASSISTANT, _ASSISTANT + "\n"))),
    _tmpl("no newline after a turn", template(("'<|im_end|>' + '\\n' }}", "'<|im_end|>' }}"))),
    _tmpl("a carriage return in the newlines", template(("'<|im_end|>' + '\\n'", "'<|im_end|>' + '\\r\\n'"))),
    _tmpl("content stripped of white space", template(("message['content'] +", "message['content'] | trim +"))),
    _tmpl("turns in reverse order", template(
        ("{% for message in messages %}", "{% for message in messages | reverse %}"))),
    _tmpl("role after content", template(
        ("message['role'] + '\\n' + message['content']", "message['content'] + '\\n' + message['role']"))),
    _tmpl("assistant named bot", template(("assistant\\n'", "bot\\n'"))),
    _tmpl("generation prompt missing", template((_ASSISTANT, ""))),
    _tmpl("generation prompt twice", template((_ASSISTANT, _ASSISTANT * 2))),
    _tmpl("generation prompt without its newline", template(("assistant\\n' }}", "assistant' }}"))),
    _tmpl("BOS twice", template(("{% for message in messages %}", "<|im_start|>{% for message in messages %}")), bug="vllm#2012"),
    _tmpl("another form of the same text", template(("loop.first and", "loop.index0 == 0 and"))),
    _tmpl("a template file that wins over the configuration", lambda folder: replace(
        folder / "chat_template.jinja", CHATML.replace("helpful", "harmless").encode()), bug="LLMKube#619"),
    _tmpl("no template at all", lambda folder: edit_json(
        folder / TOKENIZER_CONFIG, lambda value: value.pop("chat_template"))),
    _tmpl("a template that is not valid", template(("{% endfor %}", ""))),
    _tmpl("another template declared", declared(chat_template="{{ messages[0]['content'] }}"), arranged=True),
    _tmpl("template of several, another default", lambda folder: edit_json(
        folder / TOKENIZER_CONFIG, lambda value: value.update(chat_template=[
            {"name": "tool_use", "template": value["chat_template"]},
            {"name": "default", "template": value["chat_template"].replace("helpful", "careful")}]))),
)  # fmt: skip

_SPECIAL: Final = (
    _spec("another EOS id", generation(eos_token_id=0)),
    _spec("an EOS id more", generation(eos_token_id=[2, 0]), bug="vllm#54195"),
    _spec("EOS ids missing, the configuration's word taken", lambda folder: (
        edit_json(folder / GENERATION, lambda value: value.pop("eos_token_id")), config(eos_token_id=[2, 0])(folder))),
    _spec("EOS of the tokenizer", settings(eos_token="<|endoftext|>")),
    _spec("BOS of the tokenizer", settings(bos_token="<|endoftext|>")),
    _spec("pad of the tokenizer", settings(pad_token="<|endoftext|>")),
    _spec("unknown token of the tokenizer", settings(unk_token="<|im_end|>")),
    _spec("BOS added unasked", settings(add_bos_token=True), bug="sglang PR#888"),
    _spec("EOS added unasked", settings(add_eos_token=True)),
    _spec("default temperature", generation(temperature=0.7)),
    _spec("default top_p", generation(top_p=0.9)),
    _spec("default top_k", generation(top_k=50)),
    _spec("default repetition penalty", generation(repetition_penalty=1.1)),
    _spec("default length", generation(max_length=20), bug="vllm#6707"),
    _spec("suppressed tokens", generation(suppress_tokens=[5])),
    _spec("context limit halved", config(max_position_embeddings=1024)),
    _spec("context limit doubled", config(max_position_embeddings=4096), bug="ms-swift#8223"),
    _spec("generation config that is not JSON", lambda folder: replace(folder / GENERATION, b"{")),
    _spec("generation config with NaN", lambda folder: replace(folder / GENERATION, b'{"temperature": NaN}')),
    _spec("no generation config, the configuration's EOS is another", lambda folder: (
        (folder / GENERATION).unlink(), config(eos_token_id=0)(folder))),
    Fault(part="specialTokens", name="one EOS id of two missing", reason=Reason.SPECIAL_TOKENS_MISMATCH,
          arrange=files(generation(eos_token_id=[2])), base="talkative"),
    Fault(part="specialTokens", name="sampling defaults missing", reason=Reason.SPECIAL_TOKENS_MISMATCH,
          arrange=files(lambda folder: edit_json(folder / GENERATION, lambda value: [
              value.pop(name) for name in ("temperature", "top_p", "top_k", "do_sample")])), base="talkative"),
)  # fmt: skip

FAULTS: Final = (*_TOKENIZER, *_TEMPLATE, *_SPECIAL)

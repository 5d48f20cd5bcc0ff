"""Wrong weights and architecture: part ``model``. The bytes are what counts, so one bit of any tensor must show.

Generated: for every kind of tensor, one flipped bit of each meaning, in the first or the last layer by turns. Then whole tensors and
files that changed places, were cut, zeroed or converted, and each field of ``config.json`` that changes what is computed.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from pratique_contract.reasons import Reason
from tests.mutation.fault import Fault, files
from tests.support.mutations import Mutation, edit_json, replace

WEIGHTS: Final = "model.safetensors"
FIRST, LAST = 0, 1

# Kind of tensor → its name, {} for the layer.
KINDS: Final = {
    "embedding": "model.embed_tokens.weight",
    "q projection": "model.layers.{}.self_attn.q_proj.weight",
    "k projection": "model.layers.{}.self_attn.k_proj.weight",
    "v projection": "model.layers.{}.self_attn.v_proj.weight",
    "o projection": "model.layers.{}.self_attn.o_proj.weight",
    "gate projection": "model.layers.{}.mlp.gate_proj.weight",
    "up projection": "model.layers.{}.mlp.up_proj.weight",
    "down projection": "model.layers.{}.mlp.down_proj.weight",
    "input norm": "model.layers.{}.input_layernorm.weight",
    "post-attention norm": "model.layers.{}.post_attention_layernorm.weight",
    "final norm": "model.norm.weight",
    "language head": "lm_head.weight",
}
# Bits of a little-endian float32, by what they mean. The highest exponent bit makes a small weight a huge one.
BITS: Final = {"sign": 31, "highest exponent": 30, "lowest exponent": 23, "lowest mantissa": 0}


class TensorFile:
    """The bytes of one safetensors file, to be changed in place."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.content = bytearray(path.read_bytes())
        self._start = 8 + int.from_bytes(self.content[:8], "little")
        self.header: dict[str, Any] = json.loads(self.content[8 : self._start])

    def span(self, name: str) -> slice:
        begin, end = self.header[name]["data_offsets"]
        return slice(self._start + begin, self._start + end)

    def save(self) -> None:
        replace(self._path, bytes(self.content))


def _edit(change: Callable[[TensorFile], None], name: str = WEIGHTS) -> Mutation:
    def mutation(folder: Path) -> None:
        file = TensorFile(folder / name)
        change(file)
        file.save()

    return mutation


def flip_bit(tensor: str, bit: int, element: int = 5) -> Mutation:
    """Flip one bit of one element."""

    def change(file: TensorFile) -> None:
        file.content[file.span(tensor).start + 4 * element + bit // 8] ^= 1 << bit % 8

    return _edit(change)


def _swap(first: str, second: str) -> Mutation:
    def change(file: TensorFile) -> None:
        one, other = file.span(first), file.span(second)
        file.content[one], file.content[other] = file.content[other], file.content[one]

    return _edit(change)


def fill(tensor: str, fill: Callable[[int], bytes]) -> Mutation:
    def change(file: TensorFile) -> None:
        span = file.span(tensor)
        file.content[span] = fill(span.stop - span.start)

    return _edit(change)


def _repeat_first_row(file: TensorFile) -> None:
    """A row that was written twice where another one belongs."""
    span = file.span("model.embed_tokens.weight")
    row = 4 * file.header["model.embed_tokens.weight"]["shape"][1]
    file.content[span.start + row : span.start + 2 * row] = file.content[span.start : span.start + row]


def _transpose(folder: Path) -> None:
    """A square matrix in the other order: the shape does not show it."""

    def change(tensors: dict[str, Any]) -> None:
        name = "model.layers.0.self_attn.q_proj.weight"
        tensors[name] = tensors[name].T.contiguous()

    _resave(folder, change)


def _resave(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    from safetensors.torch import load_file, save_file

    tensors = dict(load_file(folder / WEIGHTS))
    change(tensors)
    (folder / WEIGHTS).unlink()
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def _resaved(change: Callable[[dict[str, Any]], Any]) -> Mutation:
    return lambda folder: _resave(folder, change)


def _through(dtype: str) -> Callable[[dict[str, Any]], None]:
    """Rounded to another type and back: the file looks the same from outside."""

    def change(tensors: dict[str, Any]) -> None:
        import torch

        for name, tensor in tensors.items():
            tensors[name] = tensor.to(getattr(torch, dtype)).to(torch.float32)

    return change


def _saved_as_bfloat16(tensors: dict[str, Any]) -> None:
    import torch

    for name, tensor in tensors.items():
        tensors[name] = tensor.to(torch.bfloat16)


def _truncate(keep: Callable[[int], int]) -> Mutation:
    def mutation(folder: Path) -> None:
        content = (folder / WEIGHTS).read_bytes()
        replace(folder / WEIGHTS, content[: keep(len(content))])

    return mutation


def _pickle_instead(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")


def _swap_files(folder: Path) -> None:
    one, other = folder / "model-00001-of-00003.safetensors", folder / "model-00002-of-00003.safetensors"
    first, second = one.read_bytes(), other.read_bytes()
    replace(one, second)
    replace(other, first)


def _swap_in_index(folder: Path) -> None:
    """Shards and index agree with each other: layers 0 and 1 have changed places."""

    def rename(file: TensorFile, old: str, new: str) -> None:
        header = {name.replace(old, new): entry for name, entry in file.header.items()}
        encoded = json.dumps(header).encode()
        file.content[: file._start] = len(encoded).to_bytes(8, "little") + encoded

    for number, old, new in ((1, ".layers.0.", ".layers.1."), (2, ".layers.1.", ".layers.0.")):
        _edit(lambda file, old=old, new=new: rename(file, old, new), f"model-0000{number}-of-00003.safetensors")(folder)

    def swap(index: dict[str, Any]) -> None:
        shards = {"model-00001-of-00003.safetensors": "model-00002-of-00003.safetensors"}
        shards |= {new: old for old, new in shards.items()}
        index["weight_map"] = {name: shards.get(shard, shard) for name, shard in index["weight_map"].items()}

    edit_json(folder / "model.safetensors.index.json", swap)


def _shard_of_another_model(folder: Path) -> None:
    """A download that mixed two revisions: one shard is another training step's."""
    _edit(lambda file: _negate(file), "model-00002-of-00003.safetensors")(folder)


def _negate(file: TensorFile) -> None:
    span = file.span("model.layers.1.mlp.down_proj.weight")
    for position in range(span.start + 3, span.stop, 4):
        file.content[position] ^= 0x80


def config(**fields: Any) -> Mutation:
    """Fields of ``config.json``; a dotted name reaches into an object, None removes."""

    def edit(value: dict[str, Any]) -> None:
        for path, new in fields.items():
            *parents, last = path.split("__")
            target = value
            for parent in parents:
                target = target[parent]
            if new is None:
                target.pop(last, None)
            else:
                target[last] = new

    return lambda folder: edit_json(folder / "config.json", edit)


def _flips() -> Iterator[Fault]:
    for number, (kind, pattern) in enumerate(KINDS.items()):
        for offset, (meaning, bit) in enumerate(BITS.items()):
            layer = (FIRST, LAST)[(number + offset) % 2]
            where = f" of layer {layer}" if "{}" in pattern else ""
            yield Fault(
                part="model",
                name=f"{meaning} bit of one weight in the {kind}{where}",
                reason=Reason.MODEL_MISMATCH,
                arrange=files(flip_bit(pattern.format(layer), bit)),
            )


def _model(name: str, *mutations: Mutation, bug: str = "", base: str = "tiny") -> Fault:
    return Fault(part="model", name=name, reason=Reason.MODEL_MISMATCH, arrange=files(*mutations), bug=bug, base=base)


_LAYER = "model.layers.{}.{}.weight"

FAULTS: Final = (
    *_flips(),
    _model("q projections of two layers swapped", _swap(_LAYER.format(0, "self_attn.q_proj"), _LAYER.format(1, "self_attn.q_proj"))),
    _model("k and v projection of one layer swapped", _swap(_LAYER.format(0, "self_attn.k_proj"), _LAYER.format(0, "self_attn.v_proj"))),
    _model("gate and up projection of one layer swapped", _swap(_LAYER.format(1, "mlp.gate_proj"), _LAYER.format(1, "mlp.up_proj"))),
    _model("two norms of one layer swapped", _swap(_LAYER.format(0, "input_layernorm"), _LAYER.format(0, "post_attention_layernorm"))),
    _model("language head is the embedding", _swap("model.embed_tokens.weight", "lm_head.weight")),
    _model("a square matrix transposed", _transpose),
    _model("one tensor zeroed", fill(_LAYER.format(1, "self_attn.o_proj"), bytes)),
    _model("one tensor of NaN", fill(_LAYER.format(0, "mlp.up_proj"), lambda size: b"\x00\x00\xc0\x7f" * (size // 4))),
    _model("one embedding row twice", _edit(_repeat_first_row)),
    _model("all weights rounded to bfloat16 and back", _resaved(_through("bfloat16"))),
    _model("all weights rounded to float16 and back", _resaved(_through("float16"))),
    _model("the file saved in bfloat16", _resaved(_saved_as_bfloat16)),
    _model("one tensor missing", _resaved(lambda tensors: tensors.pop("model.norm.weight"))),
    _model("one tensor too many", _resaved(lambda tensors: tensors.update(extra=tensors["model.norm.weight"].clone()))),
    _model("one tensor of another shape", _resaved(lambda t: t.update({"model.norm.weight": t["model.norm.weight"][:32].clone()}))),
    _model("the file cut in the middle", _truncate(lambda size: size // 2)),
    _model("the file without its last byte", _truncate(lambda size: size - 1)),
    _model("an empty file", _truncate(lambda size: 0)),
    _model("weights only as a pickle", _pickle_instead),
    _model("contents of two shards swapped", _swap_files, base="sharded"),
    _model("two layers' shards swapped with their index", _swap_in_index, base="sharded"),
    _model("one shard of another training step", _shard_of_another_model, base="sharded", bug="LLMKube#1767"),
    _model("one shard missing", lambda folder: (folder / "model-00003-of-00003.safetensors").unlink(), base="sharded"),
    _model("rope theta doubled", config(rope_parameters__rope_theta=20000.0)),
    _model("rope scaling added", config(rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0})),
    _model("rope of another type", config(rope_parameters={
        "rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0, "original_max_position_embeddings": 512})),
    _model("norm epsilon", config(rms_norm_eps=1e-5)),
    _model("activation", config(hidden_act="gelu")),
    _model("tied embeddings", config(tie_word_embeddings=True)),
    _model("one layer fewer", config(num_hidden_layers=1)),
    _model("heads grouped otherwise", config(num_attention_heads=2, head_dim=32)),
    _model("another architecture of the same shapes", config(model_type="mistral", architectures=["MistralForCausalLM"])),
    _model("a sliding window", config(model_type="mistral", architectures=["MistralForCausalLM"], sliding_window=16)),
    _model("code of the folder's own asked for", config(auto_map={"AutoModelForCausalLM": "modeling.Tiny"})),
)  # fmt: skip

"""Any single change in anything that is an input moves the digest of its own part and of no other; what is not an input moves none.

The folder's files are read, hashed and split between the parts by the code a pod runs; only the matrices' arithmetic is left out.
"""

import functools
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from pratique_contract.manifest import PARTS, ReleaseManifest
from pratique_server.artifacts.files import (
    CONFIG_NOISE_FIELDS,
    CONFIG_OMITTED,
    TOKENIZER_CONFIG_OMITTED,
)
from pratique_server.release.generation_defaults import ACTING
from tests.unit.server.release.worlds import World, build_in, manifest_of, write_folder

QUICK = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@functools.cache
def base() -> ReleaseManifest:
    return manifest_of(World())


def moved(world: World) -> list[str]:
    """The parts whose digest is another one than in the unchanged world."""
    other = manifest_of(world)
    parts = [part for part in PARTS if base().digests[part] != other.digests[part]]
    assert (base().fingerprint != other.fingerprint) is bool(parts)
    return parts


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
NUMBER = st.one_of(st.integers(-(2**53) + 1, 2**53 - 1), st.floats(allow_nan=False, allow_infinity=False, width=32))
JSON_VALUE = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBER, TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=6,
)
# Fields that choose what is built, or refuse it, before anything is hashed.
_STRUCTURAL = ("text_config", "quantization_config", "compression_config")


def _set_field(
    data: st.DataObject, value: dict[str, Any], forbidden: tuple[str, ...], *, null_is_silence: bool
) -> None:
    """Set one field, new or there, to another value, or take one away."""
    names = st.one_of(TEXT, st.sampled_from(sorted(value)))
    name = data.draw(names.filter(lambda name: name not in forbidden))
    if name in value and data.draw(st.booleans()):
        del value[name]
        return
    new = data.draw(JSON_VALUE)
    assume(json.dumps(new, sort_keys=True) != json.dumps(value.get(name), sort_keys=True) or name not in value)
    assume(not (null_is_silence and new is None))
    value[name] = new


def _flip_bit(data: st.DataObject, content: bytes) -> bytes:
    position = data.draw(st.integers(0, len(content) * 8 - 1))
    changed = bytearray(content)
    changed[position // 8] ^= 1 << position % 8
    return bytes(changed)


def change_config(world: World, data: st.DataObject) -> str:
    _set_field(data, world.config, (*CONFIG_OMITTED, *_STRUCTURAL), null_is_silence=False)
    return "model"


def flip_weight_bit(world: World, data: st.DataObject) -> str:
    name = data.draw(st.sampled_from(sorted(world.weights)))
    world.weights[name] = _flip_bit(data, world.weights[name])
    return "model"


def rename_tensor(world: World, data: st.DataObject) -> str:
    world.weights["c.weight"] = world.weights.pop(data.draw(st.sampled_from(sorted(world.weights))))
    return "model"


def swap_tensors(world: World, _: st.DataObject) -> str:
    world.weights = dict(zip(world.weights, reversed(world.weights.values()), strict=True))
    return "model"


def change_source(world: World, data: st.DataObject) -> str:
    change = data.draw(st.sampled_from([{"revision": "2" * 40}, {"uri": "hf://org/other"}, {"uri": "pvc://claim/x"}]))
    world.spec["model"].update(change)
    return "model"


def change_adapter_config(world: World, data: st.DataObject) -> str:
    adapter = data.draw(st.sampled_from(world.adapters))
    adapter["config"] |= data.draw(
        st.sampled_from(
            [{"r": 2}, {"lora_alpha": 3}, {"target_modules": ["k"]}, {"use_rslora": True}, {"task_type": "x"}]
        )
    )
    return "adapters"


def flip_adapter_bit(world: World, data: st.DataObject) -> str:
    adapter = data.draw(st.sampled_from(world.adapters))
    adapter["weights"] = _flip_bit(data, adapter["weights"])
    return "adapters"


def rearrange_adapters(world: World, data: st.DataObject) -> str:
    change = data.draw(st.sampled_from(["swap", "drop", "rename", "revision"]))
    if change == "swap":
        world.adapters.reverse()
    elif change == "drop":
        del world.adapters[data.draw(st.integers(0, 1))]
    elif change == "rename":
        world.adapters[0]["name"] = "third"
    else:
        world.adapters[0]["revision"] = "3" * 40
    return "adapters"


def change_tokenizer_config(world: World, data: st.DataObject) -> str:
    _set_field(data, world.tokenizer_config, TOKENIZER_CONFIG_OMITTED, null_is_silence=False)
    return "tokenizer"


def change_tokenizer(world: World, data: st.DataObject) -> str:
    change = data.draw(st.sampled_from(["merge", "token", "setting"]))
    if change == "merge":
        world.tokenizer["model"]["merges"].append(data.draw(TEXT))
    elif change == "token":
        world.tokenizer["model"]["vocab"][data.draw(TEXT.filter(lambda text: text not in ("a", "b")))] = 2
    else:
        world.tokenizer["normalizer"] = data.draw(JSON_VALUE)
    return "tokenizer"


def change_template(world: World, data: st.DataObject) -> str:
    """One character more at any place outside the tags: even a space is another prompt."""
    character = data.draw(st.characters(exclude_categories=["Cs"], exclude_characters="{}%#-+\r\n"))
    place = data.draw(st.sampled_from([0, world.template.index("{{"), len(world.template)]))
    world.template = world.template[:place] + character + world.template[place:]
    return "chatTemplate"


def change_generation(world: World, data: st.DataObject) -> str:
    ids = ("eos_token_id", "bos_token_id", "pad_token_id")
    fields = (*ids, *ACTING, "transformers_version", "_from_model_config")
    if data.draw(st.booleans()):
        world.generation["temperature"] = data.draw(st.floats(0.6, 2))
    else:
        _set_field(data, world.generation, fields, null_is_silence=True)
    return "specialTokens"


def change_special_tokens(world: World, data: st.DataObject) -> str:
    change: dict[str, Any] = data.draw(
        st.sampled_from([{"eos_token": "a"}, {"pad_token": "a"}, {"add_bos_token": True}, {"add_eos_token": True}])
    )
    world.tokenizer_config |= change
    return "specialTokens"


def change_stop_ids(world: World, data: st.DataObject) -> str:
    ids = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=3))
    assume(set(ids) != {2, 3})
    world.generation["eos_token_id"] = ids
    return "specialTokens"


def change_context(world: World, data: st.DataObject) -> str:
    world.config["max_position_embeddings"] = data.draw(st.integers(65, 10**6))
    return "specialTokens"


def change_numbers(world: World, data: st.DataObject) -> str:
    world.spec["quantization"] = data.draw(
        st.sampled_from([
            {"dtype": "BF16"},
            {"method": "Int8WeightOnly"},
            {"method": "Int8WeightOnly", "config": {"keep": ["x"]}},
        ])
    )  # fmt: skip
    return "quantization"


def change_engine(world: World, data: st.DataObject) -> str:
    change = data.draw(st.sampled_from(["library", "build", "image", "name"]))
    if change == "library":
        world.libraries["torch"] = "2.13.1"
    elif change == "build":
        world.build = "sha256:" + "c" * 64
    elif change == "image":
        world.spec["engine"]["imageDigest"] = "sha256:" + data.draw(
            st.text("0123456789abcdef", min_size=64, max_size=64)
        )
    else:
        world.spec["engine"]["name"] = "Naive"
        return "engine and servingFlags"  # another engine knows other arguments
    return "engine"


def change_flags(world: World, data: st.DataObject) -> str:
    section, change = data.draw(
        st.sampled_from([
            ("engine", {"maxModelLen": 32}),
            ("engine", {"maxNumSeqs": 8}),
            ("engine", {"maxBatchedTokens": 64}),
            ("engine", {"kvCache": {"blocks": 9}}),
            ("engine", {"kvCache": {"blockSize": 32}}),
            ("engine", {"args": ["--packed-check=one-sequence"]}),
            ("limits", {"maxPromptTokens": 7}),
            ("limits", {"maxOutputTokens": 7}),
        ])
    )  # fmt: skip
    world.spec[section].update(change)
    return "servingFlags"


CHANGES = [
    change_config, flip_weight_bit, rename_tensor, swap_tensors, change_source, change_adapter_config, flip_adapter_bit,
    rearrange_adapters, change_tokenizer_config, change_tokenizer, change_template, change_generation,
    change_special_tokens, change_stop_ids, change_context, change_numbers, change_engine, change_flags,
]  # fmt: skip


@pytest.mark.req("R30", "R128")
@pytest.mark.parametrize("change", CHANGES)
@settings(QUICK, max_examples=8)
@given(data=st.data())
def test_one_change_moves_the_digest_of_its_part_and_of_no_other(
    change: Callable[[World, st.DataObject], str], data: st.DataObject
) -> None:
    world = World()
    expected = change(world, data)
    assert moved(world) == expected.split(" and ")


def _writer(seed: int, indent: int | None, *, ascii_only: bool, separators: tuple[str, str]) -> Callable[[Any], str]:
    """JSON in another layout and another order of keys, at every depth."""

    def shuffle(value: Any, order: random.Random) -> Any:
        if isinstance(value, dict):
            items = [(key, shuffle(item, order)) for key, item in value.items()]
            order.shuffle(items)
            return dict(items)
        return [shuffle(item, order) for item in value] if isinstance(value, list) else value

    return lambda value: json.dumps(
        shuffle(value, random.Random(seed)), indent=indent, ensure_ascii=ascii_only, separators=separators
    )


@pytest.mark.req("R128")
@QUICK
@given(
    writer=st.builds(
        _writer, st.integers(0, 99), st.sampled_from([None, 0, 1, 4, "\t"]), ascii_only=st.booleans(),
        separators=st.sampled_from([(",", ":"), (", ", ": "), (" , ", " :  ")]),
    ),
    facts=st.dictionaries(TEXT, JSON_VALUE, max_size=3),
    noise=st.dictionaries(st.sampled_from(CONFIG_NOISE_FIELDS), TEXT, max_size=2),
    silence=st.sampled_from([{}, {"top_k": None}, {"transformers_version": "9"}, {"_from_model_config": True}]),
    unread=st.dictionaries(st.sampled_from(["README.md", "optimizer.pt", "pytorch_model.bin"]), st.binary(max_size=9)),
    spec=st.sampled_from([
        {}, {"servedModelName": "other"}, {"host": "10.0.0.1"}, {"service": "s", "namespace": "n", "revision": "r"},
        {"drain": {"deadlineSeconds": 1}}, {"probeTimeoutSeconds": 9}, {"download": {"connections": 1}},
    ]),
    written_out=st.booleans(),
)  # fmt: skip
def test_layout_place_and_host_move_no_digest(
    writer: Callable[[Any], str],
    facts: dict[str, Any],
    noise: dict[str, str],
    silence: dict[str, Any],
    unread: dict[str, bytes],
    spec: dict[str, Any],
    written_out: bool,
) -> None:
    world = World(write=writer, facts=facts, unread=unread)
    world.config |= noise
    world.generation |= silence
    world.spec |= spec
    if written_out:  # a default that is spelt out is the same release
        world.spec["engine"] = {"maxNumSeqs": 16, "args": ["--packed-check=refuse"], "kvCache": {"blockSize": 16}}
        world.generation["eos_token_id"] = [3, 2, 3]
    assert moved(world) == []


@pytest.mark.parametrize("threads", [1, 3])
def test_time_path_and_threads_move_no_digest(tmp_path: Path, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    world, folder = World(facts={"hostname": "elsewhere"}), tmp_path / "a folder with another name"
    write_folder(world, folder)
    for number, file in enumerate(sorted(folder.rglob("*"))):
        os.utime(file, (number, number))
    manifest = build_in(world, folder)
    assert manifest.digests == base().digests
    assert manifest.runtime.facts["threads"] == threads

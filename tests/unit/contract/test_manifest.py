"""The fingerprint: what moves it, what does not, and which part a change lands in."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pratique_contract.compare import compare_golden, compare_manifests
from pratique_contract.manifest import PARTS, QuantizationPart, ReleaseManifest, RuntimeSection, TokenizerPart
from pratique_contract.reasons import GATE_REASONS, PART_REASONS, Reason
from tests.support.releases import make_file, make_manifest, make_record

BASE = make_manifest()


def _leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, dict):
        return [leaf for key, item in value.items() for leaf in _leaves(item, (*path, key))]
    if isinstance(value, list):
        return [leaf for index, item in enumerate(value) for leaf in _leaves(item, (*path, index))]
    return [path]


LEAVES = [path for path in _leaves(BASE.to_json_value()) if path[0] in PARTS]
_CHANGES: dict[type, Callable[[Any], Any]] = {
    bool: lambda value: not value,
    int: lambda value: value + 1,
    float: lambda value: value + 0.5,
    type(None): lambda _: 7,
}


def _with_change(value: Any, path: tuple[Any, ...]) -> Any:
    copy = json.loads(json.dumps(value))
    target = copy
    for step in path[:-1]:
        target = target[step]
    target[path[-1]] = _changed(path, target[path[-1]])
    return copy


def _changed(path: tuple[Any, ...], value: Any) -> Any:
    if not isinstance(value, str):
        if path[-1] in ("source", "imageDigest", "toolCallGrammar"):
            return "sha256:" + "e" * 64
        return _CHANGES[type(value)](value)
    choices = {"form": "json", "mode": "Static", "dtype": "BF16"}
    if path[-1] in choices:
        return choices[path[-1]]
    return f"sha256:{'f' * 64}" if value.startswith("sha256:") else f"{value}x"


@pytest.mark.req("R128")
@given(st.sampled_from(LEAVES))
def test_any_single_change_moves_exactly_its_own_part_and_the_fingerprint(path: tuple[Any, ...]) -> None:
    changed = ReleaseManifest.from_json_value(_with_change(BASE.to_json_value(), path))
    moved = [part for part in PARTS if changed.digests[part] != BASE.digests[part]]
    assert moved == [path[0]]
    assert changed.fingerprint != BASE.fingerprint
    (difference,) = compare_manifests(BASE, changed)
    assert (difference.part, difference.reason) == (path[0], PART_REASONS[path[0]])
    assert difference.fields


def test_the_changes_above_touch_every_part() -> None:
    assert {path[0] for path in LEAVES} == set(PARTS)


@given(st.permutations(PARTS))
def test_field_order_and_white_space_change_nothing(order: list[str]) -> None:
    value = BASE.to_json_value()
    respelled = json.loads(json.dumps({**{part: value[part] for part in order}, "runtime": {}}, indent=2))
    assert ReleaseManifest.from_json_value(respelled).digests == BASE.digests


@given(st.permutations(["a", "b", "c", "d"]))
def test_the_order_in_which_files_and_ids_are_found_changes_nothing(names: list[str]) -> None:
    files = tuple(make_file(name) for name in names)
    tokenizer = TokenizerPart(source=None, revision="t1", files=files, vocab_size=4)
    special = BASE.special_tokens.model_copy(update={"eos_ids": ()})
    shuffled = type(special).model_validate({**special.model_dump(), "stop_ids": tuple(map(ord, names))})
    assert [entry.path for entry in tokenizer.files] == ["a", "b", "c", "d"]
    assert shuffled.stop_ids == tuple(map(ord, "abcd"))


def test_host_facts_are_not_part_of_the_identity() -> None:
    elsewhere = make_manifest(runtime=RuntimeSection(device_class="cuda-sm90", facts={"threads": 64}))
    assert elsewhere.fingerprint == BASE.fingerprint
    assert compare_manifests(BASE, elsewhere) == ()


def test_the_order_of_adapters_is_identity_since_merging_does_not_commute() -> None:
    (first,) = BASE.adapters.adapters
    second = first.model_copy(update={"name": "quay"})
    forward = make_manifest(adapters=type(BASE.adapters)(adapters=(first, second)))
    backward = make_manifest(adapters=type(BASE.adapters)(adapters=(second, first)))
    (difference,) = compare_manifests(forward, backward)
    assert difference.reason is Reason.ADAPTER_MISMATCH
    assert difference.fields[0].path == "adapters"
    assert difference.fields[0].expected == f"harbour at {first.revision} before {second.name} at {second.revision}"


def test_a_manifest_survives_json() -> None:
    assert ReleaseManifest.from_json_value(json.loads(json.dumps(BASE.to_json_value()))) == BASE


def test_a_changed_copy_has_its_own_fingerprint() -> None:
    assert BASE.fingerprint  # cached before the copy is made
    changed = BASE.model_copy(update={"model": BASE.model.model_copy(update={"revision": "2" * 40})})
    assert changed.fingerprint == ReleaseManifest.from_json_value(changed.to_json_value()).fingerprint
    assert changed.fingerprint != BASE.fingerprint


def test_an_unknown_field_is_refused() -> None:
    value = BASE.to_json_value()
    value["engine"]["kernels"] = "fast"
    with pytest.raises(ValidationError, match=r"engine\.kernels"):
        ReleaseManifest.from_json_value(value)


def test_one_path_twice_is_refused() -> None:
    with pytest.raises(ValidationError, match="one path twice"):
        TokenizerPart(source=None, revision="t", files=(make_file("a"), make_file("a", "y")), vocab_size=1)


def test_a_difference_reads_as_a_sentence() -> None:
    files = (make_file("config.json"), make_file("model.safetensors", "y"), make_file("extra.json"))
    changed = make_manifest(model=BASE.model.model_validate({**BASE.model.model_dump(), "files": files}))
    (difference,) = compare_manifests(BASE, changed)
    assert [field.path for field in difference.fields] == ["files[extra.json]", "files[model.safetensors].sha256"]
    assert difference.message.startswith("model.files[extra.json]: nothing was recorded, ")
    assert difference.message.endswith(" is loaded (also files[model.safetensors].sha256)")


def test_another_build_of_the_server_is_said_in_words() -> None:
    changed = make_manifest(engine=BASE.engine.model_copy(update={"build": "sha256:" + "9" * 64}))
    (difference,) = compare_manifests(BASE, changed)
    assert difference.message.endswith("the record was made with another version of the server than the pod runs")


def test_a_value_that_is_not_set_is_nothing() -> None:
    flags = {**BASE.serving_flags.flags, "maxModelLen": None}
    changed = make_manifest(serving_flags=BASE.serving_flags.model_copy(update={"flags": flags}))
    (difference,) = compare_manifests(BASE, changed)
    assert difference.message.endswith("nothing is loaded")


def test_several_wrong_parts_are_reported_in_the_gates_order() -> None:
    changed = make_manifest(
        serving_flags=BASE.serving_flags.model_copy(update={"flags": {}}),
        model=BASE.model.model_copy(update={"revision": "2" * 40}),
    )
    assert [difference.part for difference in compare_manifests(BASE, changed)] == ["model", "servingFlags"]


def test_every_part_has_a_reason_the_gate_may_give() -> None:
    assert tuple(PART_REASONS) == PARTS
    assert set(PART_REASONS.values()) <= GATE_REASONS


def test_a_changed_file_is_named_before_what_else_it_moves() -> None:
    changed = BASE.tokenizer.model_copy(
        update={"files": (make_file("tokenizer.json", "other"),), "compiled": make_file("x", "other").sha256}
    )
    (difference,) = compare_manifests(BASE, BASE.model_copy(update={"tokenizer": changed}))
    assert difference.fields[0].path.startswith("files[tokenizer.json]")


@pytest.mark.parametrize(("one", "other"), [(["a", "b"], ["b", "a"]), (["a", "a"], ["a"])])
def test_whatever_moves_a_digest_is_named_as_a_difference(one: list[str], other: list[str]) -> None:
    """A part that differs without a differing field would pass wherever fields decide: adding outputs, blaming a part."""
    left, right = (
        make_manifest(
            special_tokens=BASE.special_tokens.model_copy(update={"generation_defaults": {"stop_strings": value}})
        )
        for value in (one, other)
    )
    (difference,) = compare_manifests(left, right)
    assert [field.path for field in difference.fields] == ["generationDefaults.stop_strings"]


def test_another_method_is_named_before_the_settings_it_brings() -> None:
    one = QuantizationPart(method="None", dtype="BF16")
    other = QuantizationPart(method="Int8WeightOnly", dtype="BF16", config={"axis": "output", "keep": []})
    (difference,) = compare_manifests(make_manifest(quantization=one), make_manifest(quantization=other))
    assert difference.message.startswith("quantization.method: None was recorded, Int8WeightOnly is loaded")


def test_an_adapter_that_only_one_side_has_is_named_and_not_printed_as_a_structure() -> None:
    (first,) = BASE.adapters.adapters
    (difference,) = compare_manifests(BASE, make_manifest(adapters=type(BASE.adapters)()))
    assert difference.fields[0].expected == f"harbour at {first.revision}"
    assert "{" not in difference.message


def test_long_values_that_begin_alike_are_shown_where_they_part() -> None:
    """Two texts cut off at the same place read as the same text."""
    one, other = "a" * 300 + "b", "a" * 300 + "c"
    left, right = (
        make_manifest(special_tokens=BASE.special_tokens.model_copy(update={"generation_defaults": {"x": value}}))
        for value in (one, other)
    )
    (difference,) = compare_manifests(left, right)
    (field,) = difference.fields
    assert (field.path, field.expected, field.observed) == ("generationDefaults.x[300]", "b", "c")


def test_long_lists_that_begin_alike_are_shown_where_they_part() -> None:
    golden, ids = make_record().golden, tuple(range(10, 300))
    first, *others = golden.fixtures
    longer, shorter = (
        golden.model_copy(update={"fixtures": (first.model_copy(update={"ids": value}), *others)})
        for value in (ids, ids[:-1])
    )
    (field,) = compare_golden(longer, shorter)
    assert (field.path, field.expected, field.observed) == ("golden.fixtures[plain].ids[289]", "299", "absent")

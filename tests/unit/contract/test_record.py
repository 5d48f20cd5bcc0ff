"""The release record: round trip, and a sentence for each way in which a file can fail to be one."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from pratique_contract.golden import GoldenRecord, Usage
from pratique_contract.record import RECORD_BYTES_MAX, RecordError, ReleaseRecord
from tests.support.releases import make_case, make_golden, make_output, make_record


def _value() -> dict[str, Any]:
    return make_record().to_json_value()


def _parse(value: Any) -> ReleaseRecord:
    return ReleaseRecord.from_json(json.dumps(value))


def test_a_record_survives_json_byte_for_byte() -> None:
    record = make_record()
    text = record.to_json()
    assert ReleaseRecord.from_json(text) == record
    assert ReleaseRecord.from_json(text).to_json() == text


def test_layout_does_not_change_a_record() -> None:
    assert _parse(_value()).to_json() == ReleaseRecord.from_json(json.dumps(_value(), indent=4)).to_json()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is not JSON"),
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ('{"a": 1, "a": 2}', "the key 'a' is given twice"),
        ('{"a": NaN}', "NaN is not a JSON number"),
        ("[]", "not valid at record"),
        ("{}", "not valid at manifest: Field required"),
    ],
)
def test_a_text_that_is_no_record_gets_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(RecordError, match=sentence):
        ReleaseRecord.from_json(text)


def test_a_wrong_field_is_named_by_its_path() -> None:
    value = _value()
    value["manifest"]["model"]["files"][0]["sha256"] = "sha256:short"
    with pytest.raises(RecordError, match=r"manifest\.model\.files\.0\.sha256"):
        _parse(value)


def test_another_versions_record_is_refused() -> None:
    with pytest.raises(RecordError, match="not valid at version"):
        _parse({**_value(), "version": "pratique.dev/record/v2"})


def test_a_template_text_that_is_not_the_manifests_is_refused() -> None:
    with pytest.raises(RecordError, match=r"chatTemplate is not the text that manifest\.chatTemplate\.sha256 names"):
        _parse({**_value(), "chatTemplate": "{{ messages }}"})


def test_an_output_must_have_one_entry_per_token() -> None:
    with pytest.raises(ValueError, match="must be the same count"):
        make_output(margins=(1.0,))
    with pytest.raises(ValueError, match="ids is empty"):
        make_output(ids=(), logprobs=(), margins=(), usage=Usage(prompt_tokens=2, completion_tokens=0))


@pytest.mark.parametrize("margin", [-5.0, 0.0, 0.49])
def test_a_near_tie_is_no_golden_output(margin: float) -> None:
    """On another device the gate excuses a difference at a near-tie: a record of near-ties would let any answer pass."""
    with pytest.raises(ValueError, match=r"leads by less than 0\.5 nat proves nothing"):
        make_output(margins=(1.0, margin, 1.0))


@pytest.mark.parametrize("token", [-1, 2**31])
def test_an_id_that_no_tokenizer_has_is_refused(token: int) -> None:
    with pytest.raises(ValueError, match="ids"):
        make_output(ids=(10, token, 2))


@pytest.mark.parametrize("name", ["", "two words", "quay\nx", "⚓", "x" * 64])
def test_a_name_must_fit_into_a_request_id(name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        make_case(name=name)


def test_a_name_given_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="the name 'greeting' is given twice"):
        GoldenRecord(cases=(make_case(), make_case(max_tokens=4)))


@pytest.mark.parametrize("place", ['"generationDefaults":{', '"messages":[{'])
@pytest.mark.parametrize("value", ["1e999", str(2**60), '"\\ud800"', "[" * 300 + "]" * 300])
def test_a_value_that_no_canonical_json_has_is_refused_wherever_it_stands(value: str, place: str) -> None:
    """In a conversation it would be found by the gate or the operator only when they come to compare or to write it."""
    text = make_record(golden=make_golden()).to_json()
    assert place in text
    with pytest.raises(RecordError, match="holds a value that no canonical JSON has"):
        ReleaseRecord.from_json(text.replace(place, f'{place}"odd":{value},'))


def test_usage_must_count_the_prompt() -> None:
    with pytest.raises(ValueError, match=r"usage\.promptTokens is 2 but promptIds has 3 ids"):
        make_case(prompt_ids=(5, 6, 7))


def test_a_record_that_does_not_fit_a_configmap_is_refused_when_written_and_when_read() -> None:
    long = make_case(messages=({"role": "user", "content": "x" * RECORD_BYTES_MAX},))
    record = make_record(golden=GoldenRecord(cases=(long,)))
    with pytest.raises(RecordError, match="ConfigMap leaves room for"):
        record.to_json()
    with pytest.raises(RecordError, match="ConfigMap leaves room for"):
        ReleaseRecord.from_json(json.dumps(record.to_json_value()))


def test_a_record_that_can_be_read_can_be_written() -> None:
    """Defaults that the text leaves out are written out: the operator would come to know only when it makes the pods' own copy."""
    text = make_record().to_json().replace('"form":"bytes",', "").replace('"omitted":[],', "")
    room = RECORD_BYTES_MAX - len(make_record().to_json())
    padded = text.replace('"content":"Ahoy"', f'"content":"Ahoy{"x" * (room + 1)}"', 1)
    assert len(padded) < RECORD_BYTES_MAX
    with pytest.raises(RecordError, match="ConfigMap leaves room for"):
        ReleaseRecord.from_json(padded)


def test_very_many_keys_of_which_one_is_given_twice_cost_no_time() -> None:
    """Whoever may write a ConfigMap would stop the operator that reads it: counting each key among all takes minutes."""
    text = "{" + ",".join(f'"{n}":0' for n in range(99_000)) + ',"98999":1}'
    with pytest.raises(RecordError, match="the key '98999' is given twice"):
        ReleaseRecord.from_json(text)


def test_the_exact_output_is_found_by_dtype_device_and_build() -> None:
    here = make_output()
    there = make_output(device_class="cuda-sm90", text="other")
    case = make_case(outputs=(there, here))
    found = case.exact_output(dtype="FP32", device_class="cpu", engine_build=here.engine_build)
    assert found == here
    assert case.exact_output(dtype="BF16", device_class="cpu", engine_build=here.engine_build) is None


@pytest.mark.parametrize("path", [("golden", "fixtures"), ("golden", "cases"), ("manifest", "model", "files")])
def test_the_first_wrong_item_of_a_list_ends_the_reading(path: tuple[str, ...]) -> None:
    """All the errors of a few hundred thousand items are some seconds of the operator's time, in every pass."""
    value = _value()
    place = value
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = [{}] * 3
    with pytest.raises(ValidationError) as caught:
        ReleaseRecord.from_json_value(value)
    assert len({error["loc"][: len(path) + 1] for error in caught.value.errors()}) == 1

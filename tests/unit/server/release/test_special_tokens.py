"""Stop rules and defaults: which of the files speaks, and that what is read is what acts."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pratique_contract.manifest import SpecialTokensPart
from pratique_server.artifacts.errors import ManifestError
from pratique_server.artifacts.tokenizer_files import read_tokenizer_files
from pratique_server.release.generation_defaults import find_not_applied
from pratique_server.release.special_tokens import read_special_tokens


@dataclass
class Ids:
    bos_id: int | None = None
    eos_id: int | None = 7
    pad_id: int | None = None
    unk_id: int | None = None
    adds_bos: bool = False
    adds_eos: bool = False
    special_tokens: dict[str, str] = field(default_factory=dict)


def _read(folder: Path, *, config: Any = None, generation: Any = None, **ids: Any) -> SpecialTokensPart:
    for name, value in (("config.json", config), ("generation_config.json", generation)):
        if value is not None:
            (folder / name).write_text(json.dumps(value))
    return read_special_tokens(folder, tokenizer=Ids(**ids), context_limit=512)


def test_generation_config_speaks_before_config(tmp_path: Path) -> None:
    part = _read(tmp_path, config={"eos_token_id": 1}, generation={"eos_token_id": [3, 2]})
    assert (part.eos_ids, part.stop_ids) == ((2, 3), (2, 3, 7))


def test_config_speaks_where_generation_config_is_silent(tmp_path: Path) -> None:
    part = _read(tmp_path, config={"eos_token_id": 1, "pad_token_id": 4}, generation={"temperature": 0.5})
    assert (part.eos_ids, part.stop_ids, part.pad_id) == ((1,), (1, 7), 4)


def test_the_tokenizer_alone_is_enough(tmp_path: Path) -> None:
    assert _read(tmp_path).eos_ids == (7,)


def test_null_says_nothing_is_no_stop_id(tmp_path: Path) -> None:
    part = _read(tmp_path, config={"eos_token_id": 1}, generation={"eos_token_id": None}, eos_id=None)
    assert (part.eos_ids, part.stop_ids) == ((), ())


def test_defaults_are_everything_but_ids_and_noise(tmp_path: Path) -> None:
    generation = {
        "eos_token_id": 2,
        "transformers_version": "5",
        "temperature": 0.6,
        "top_p": None,
        "do_sample": True,
    }
    assert _read(tmp_path, generation=generation).generation_defaults == {"temperature": 0.6, "do_sample": True}


@pytest.mark.parametrize(
    "field",
    [
        {"temperature": -1}, {"temperature": "hot"}, {"temperature": True}, {"top_p": 0}, {"top_p": 1.1}, {"top_k": 2.5},
        {"min_p": 2}, {"repetition_penalty": 0}, {"temperature": [1]},
    ],
)  # fmt: skip
def test_a_default_that_no_request_could_ask_for_is_refused(field: dict[str, Any], tmp_path: Path) -> None:
    """Otherwise every request that leaves the field open would be refused as the client's own fault."""
    (name,) = field
    with pytest.raises(ManifestError, match=f"generation_config.json: {name} is "):
        _read(tmp_path, generation=field)


@pytest.mark.parametrize("field", [{"temperature": 0}, {"top_p": 1}, {"top_k": -1}, {"top_k": 50}, {"min_p": 0.0}])
def test_a_default_that_acts_is_kept(field: dict[str, Any], tmp_path: Path) -> None:
    assert _read(tmp_path, generation=field).generation_defaults == field


def test_fields_that_would_change_answers_and_are_not_applied_are_named() -> None:
    defaults = {
        "temperature": 0.5, "do_sample": True, "num_beams": 1, "typical_p": 1.0, "max_length": 20, "stop_strings": [],
        "no_repeat_ngram_size": 3, "suppress_tokens": [1], "num_beams_x": 4, "guidance_scale": 1.5,
    }  # fmt: skip
    assert find_not_applied(defaults) == ["guidance_scale", "no_repeat_ngram_size", "suppress_tokens"]


@pytest.mark.parametrize("value", ["2", True, -1, [2, "3"], 2.0])
def test_an_id_that_is_none_is_refused(value: Any, tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="eos_token_id"):
        _read(tmp_path, generation={"eos_token_id": value})


@pytest.mark.parametrize("content", ["[" * 100_000, "{", b"\xff", "[]"])
def test_a_file_that_is_no_object_is_refused(content: str | bytes, tmp_path: Path) -> None:
    data = content.encode() if isinstance(content, str) else content
    (tmp_path / "generation_config.json").write_bytes(data)
    with pytest.raises(ManifestError, match=r"generation_config\.json"):
        read_special_tokens(tmp_path, tokenizer=Ids(), context_limit=512)
    (tmp_path / "tokenizer_config.json").write_bytes(data)
    with pytest.raises(ManifestError, match=r"tokenizer_config\.json"):
        read_tokenizer_files(tmp_path)


def test_a_folder_in_the_place_of_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").mkdir()
    with pytest.raises(ManifestError, match="cannot be read: Is a directory"):
        read_special_tokens(tmp_path, tokenizer=Ids(), context_limit=512)


def test_a_flag_that_is_no_boolean_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text('{"add_bos_token": "yes"}')
    with pytest.raises(ManifestError, match="add_bos_token is 'yes', not true or false"):
        read_tokenizer_files(tmp_path)


def test_a_folder_without_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="holds no tokenizer file"):
        read_tokenizer_files(tmp_path)


def test_tokenizer_files_leave_out_what_other_parts_own(tmp_path: Path) -> None:
    config = {"chat_template": "x", "eos_token": "</s>", "add_bos_token": True, "model_max_length": 9}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    before = read_tokenizer_files(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 9}, indent=4))
    after = read_tokenizer_files(tmp_path)
    assert before.files == after.files
    assert (before.adds_bos, after.adds_bos) == (True, False)

"""Text to ids and back, piece by piece."""

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pratique_server.text import Detokenizer, StopStrings, Tokenizer, TokenizerError
from tests.unit.server.scripted import EOS, byte_tokenizer

EMOJI_FAMILY = "👩‍👩‍👧‍👦"


@pytest.fixture(scope="module")
def tiny_tokenizer(tiny_model_dir: Path) -> Tokenizer:
    return Tokenizer.load(tiny_model_dir)


@pytest.mark.req("R27")
def test_encode_adds_no_special_token(tiny_tokenizer: Tokenizer) -> None:
    """vllm#2012, vllm PR#5278: a template that writes BOS and a tokenizer that adds another."""
    ids = tiny_tokenizer.encode("<|im_start|>Hi")
    assert ids.count(tiny_tokenizer.bos_id or -1) == 1
    assert tiny_tokenizer.encode("") == []


def test_knows_its_special_ids_and_size(tiny_tokenizer: Tokenizer) -> None:
    assert (tiny_tokenizer.bos_id, tiny_tokenizer.eos_id, tiny_tokenizer.pad_id, tiny_tokenizer.unk_id) == (1, 2, 2, 0)
    assert tiny_tokenizer.vocab_size > 500


def test_encodes_the_same_from_many_threads(tiny_tokenizer: Tokenizer) -> None:
    """A tokenizer whose truncation or padding is set per call fails with "Already borrowed" under load."""
    texts = [f"ship {index} enters port 🚢" for index in range(200)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(tiny_tokenizer.encode, texts)) == [tiny_tokenizer.encode(text) for text in texts]


def test_the_bytes_of_tokens_join_to_the_text(tiny_tokenizer: Tokenizer) -> None:
    """vllm#16540: the log-probability entry of a byte token had no bytes."""
    for tokenizer in (tiny_tokenizer, byte_tokenizer()):
        ids = tokenizer.encode(f"ship 船 {EMOJI_FAMILY} é")
        assert b"".join(tokenizer.token_bytes(token) for token in ids) == f"ship 船 {EMOJI_FAMILY} é".encode()
    assert byte_tokenizer().token_bytes(EOS) == b"<|im_end|>"
    assert byte_tokenizer().token_bytes(10_000) == b""


def _write_word_pieces(folder: Path, words: str) -> None:
    """A tokenizer of one file that no list of ours names."""
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.txt").write_text("\n".join(["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]", *words.split()]))
    _edit_config(folder, tokenizer_class="BertTokenizer", unk_token="[UNK]")


def _name_another_file(folder: Path, normalizer: str | None) -> None:
    """A file that the configuration names for this version of the library, beside an untouched ``tokenizer.json``."""
    value = json.loads((folder / "tokenizer.json").read_text())
    value["normalizer"] = normalizer and {"type": normalizer}
    (folder / "tokenizer.4.0.0.json").write_text(json.dumps(value))
    _edit_config(folder, fast_tokenizer_files=["tokenizer.4.0.0.json", "tokenizer.json"])


def _let_the_model_choose(folder: Path, model_type: str) -> None:
    """The folder's ``config.json`` chooses the class, and with it how text is split."""
    _edit_config(folder, tokenizer_class=None)
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))


def _edit_config(folder: Path, **fields: object) -> None:
    path = folder / "tokenizer_config.json"
    value = json.loads(path.read_text()) | fields
    path.write_text(json.dumps({name: item for name, item in value.items() if item is not None}))


@pytest.mark.req("R128")
@pytest.mark.parametrize(
    ("write", "approved", "other"),
    [
        (_write_word_pieces, "ship enters port", "enters ship port"),
        (_name_another_file, None, "Lowercase"),
        (_let_the_model_choose, "llama", "qwen2"),
    ],
)
def test_what_the_library_reads_and_nobody_hashed_still_shows(
    write: Callable[[Path, object], None], approved: object, other: object, tiny_model_dir: Path, tmp_path: Path
) -> None:
    made = []
    for name, variant in (("approved", approved), ("again", approved), ("other", other)):
        folder = Path(shutil.copytree(tiny_model_dir, tmp_path / name))
        write(folder, variant)
        made.append(Tokenizer.load(folder))
    first, again, changed = made
    assert first.files == changed.files
    text = "The ship ENTERS a port: e\u0301"
    assert first.encode(text) != changed.encode(text)
    assert first.compiled == again.compiled != changed.compiled


@pytest.mark.parametrize("damage", ["missing", "no_files", "broken_json"])
def test_a_tokenizer_that_cannot_be_loaded_is_a_sentence(tmp_path: Path, tiny_model_dir: Path, damage: str) -> None:
    folder = tmp_path / "tokenizer"
    if damage != "missing":
        folder.mkdir()
    if damage == "broken_json":
        shutil.copy(tiny_model_dir / "tokenizer_config.json", folder)
        (folder / "tokenizer.json").write_text('{"model": {"type": "BPE", "vocab": {}, "merges": [["a", "b"]]}}')
    with pytest.raises(TokenizerError, match="tokenizer"):
        Tokenizer.load(folder)


def pieces_of(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    detokenizer = Detokenizer(tokenizer)
    return [*(detokenizer.push([token]) for token in ids), detokenizer.finish()]


@given(st.text(max_size=40))
@settings(max_examples=150, deadline=None)
@pytest.mark.req("R74")
def test_pieces_join_to_the_text_and_each_is_whole_characters(text: str) -> None:
    """llama.cpp#4036, vllm-mlx PR#109: a character split over tokens showed as U+FFFD."""
    text = text.replace("\N{REPLACEMENT CHARACTER}", "?")
    ids = byte_tokenizer().encode(text)
    pieces = pieces_of(byte_tokenizer(), ids)
    assert "".join(pieces) == text
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)


# Six stray bytes and then a character of three: the hold ran out in its middle, and the character was lost.
@example([94, 94, 94, 94, 94, 94, 156, 94, 94])
@given(st.lists(st.integers(min_value=0, max_value=257), max_size=40))
@settings(max_examples=150, deadline=None)
@pytest.mark.req("R74")
def test_any_ids_detokenize_to_the_text_of_all_of_them(ids: list[int]) -> None:
    """Invalid bytes included: what a random model says is still text. vllm#17448, vllm#21951."""
    whole = byte_tokenizer().decode(ids)
    assert "".join(pieces_of(byte_tokenizer(), ids)).rstrip("\ufffd") == whole.rstrip("\ufffd")


def test_an_unfinished_character_at_the_end_is_dropped() -> None:
    ids = byte_tokenizer().encode("ship 🚢")[:-1]
    assert "".join(pieces_of(byte_tokenizer(), ids)) == "ship "


def test_text_comes_token_by_token_not_at_the_end(tiny_tokenizer: Tokenizer) -> None:
    ids = tiny_tokenizer.encode("The pilot boards the ship")
    assert all(pieces_of(tiny_tokenizer, ids)[:-1])


def test_special_tokens_show_no_text() -> None:
    assert (
        "".join(pieces_of(byte_tokenizer(), [*byte_tokenizer().encode("a"), EOS, *byte_tokenizer().encode("b")]))
        == "ab"
    )


def push_all(stops: list[str], chunks: list[str]) -> tuple[list[str], str | None]:
    matcher = StopStrings(stops)
    shown = [matcher.push(chunk) for chunk in chunks]
    return [*shown, matcher.finish()], matcher.matched


@pytest.mark.req("R72")
def test_a_stop_string_over_several_tokens_is_never_shown() -> None:
    """vllm#3574, vllm#2577: a part of the stop string was sent before it was recognised."""
    shown, matched = push_all(["STOP"], ["ab", "S", "T", "O", "P", "cd"])
    assert ("".join(shown), matched) == ("ab", "STOP")
    assert shown == ["ab", "", "", "", "", "", ""]


def test_held_text_is_shown_when_it_was_no_stop_string() -> None:
    shown, matched = push_all(["STOP"], ["S", "T", "O", "X"])
    assert ("".join(shown), matched) == ("STOX", None)
    shown, matched = push_all(["STOP"], ["x ST"])
    assert ("".join(shown), matched) == ("x ST", None)


def test_the_earliest_of_several_stop_strings_ends_the_text() -> None:
    shown, matched = push_all(["later", "soon"], ["x soon and later"])
    assert ("".join(shown), matched) == ("x ", "soon")


def test_only_as_much_as_needed_is_held_back() -> None:
    shown, _ = push_all(["</think>"], ["a < b", " and c </t", "able>"])
    assert shown == ["a < b", " and c ", "</table>", ""]


@given(
    st.lists(st.text(alphabet="ab", min_size=1, max_size=4), min_size=1, max_size=3),
    st.text(alphabet="abc", max_size=30),
    st.data(),
)
@settings(max_examples=200, deadline=None)
@pytest.mark.req("R72")
def test_any_split_of_a_text_gives_the_text_before_its_first_stop_string(
    stops: list[str], text: str, data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    chunks = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    shown = "".join(push_all(stops, chunks)[0])
    # The stop string that is complete first ends the text, as a reader of the stream would see it.
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    if not ends:
        assert shown == text
    else:
        prefix = text[: min(ends)]
        assert shown in {prefix[: prefix.find(stop)] for stop in stops if stop in prefix} | {
            text[: text.find(stop)] for stop in stops if stop in text
        }
        assert not any(stop in shown for stop in stops)


def sentencepiece_tokenizer() -> Tokenizer:
    """The other family: words marked with ▁, bytes as <0x…> tokens, one leading space dropped by the decoder."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models

    words = ["▁", "▁ship", "▁船", "s", "!", "▁a", "harbour", "\n"]
    vocab = {f"<0x{byte:02X}>": byte for byte in range(256)} | {word: 256 + n for n, word in enumerate(words)}
    backend = Backend(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(["</s>"])
    return Tokenizer(backend, {"eos_token": "</s>"})


@pytest.mark.req("R74")
@given(st.lists(st.integers(min_value=256, max_value=264), max_size=30))
@settings(max_examples=150, deadline=None)
def test_spaces_of_word_marked_tokenizers_survive_the_split(ids: list[int]) -> None:
    tokenizer = sentencepiece_tokenizer()
    assert "".join(pieces_of(tokenizer, ids)) == tokenizer.decode(ids)


def test_characters_spelt_in_byte_tokens_arrive_whole() -> None:
    tokenizer = sentencepiece_tokenizer()
    ids = [257, *"🚢é".encode(), 258, *"⚓".encode()]
    pieces = pieces_of(tokenizer, ids)
    assert "".join(pieces) == "ship🚢é 船⚓"
    assert not any("\ufffd" in piece for piece in pieces)
    assert [tokenizer.token_bytes(token) for token in (0xF0, 257)] == [b"\xf0", b" ship"]


def test_a_tokenizers_own_code_is_refused_by_the_field_that_names_it(tiny_model_dir: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_model_dir, tmp_path / "copy"))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    del config["tokenizer_class"]
    (folder / "tokenizer_config.json").write_text(
        json.dumps({**config, "auto_map": {"AutoTokenizer": ["tok.T", None]}})
    )
    (folder / "tok.py").write_text("raise SystemExit")
    with pytest.raises(TokenizerError, match=r"auto_map in tokenizer_config\.json\), which is never run"):
        Tokenizer.load(folder)


def test_a_folder_without_a_tokenizer_is_refused_with_the_whole_sentence(tmp_path: Path) -> None:
    """The library's first line ends in a colon: what it looked for comes in the lines after it."""
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    (tmp_path / "vocab.txt").write_text("a\n")  # not what this class is made of
    with pytest.raises(TokenizerError, match=r"from one of:.+tokenizers"):
        Tokenizer.load(tmp_path)

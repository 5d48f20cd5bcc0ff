"""``pratique fetch`` for people: what to give, and sentences when it cannot be done."""

from pathlib import Path

from tests.unit.cli.conftest import Run


def test_uri_and_folder_or_a_document_are_needed(pratique: Run, tmp_path: Path) -> None:
    assert pratique("fetch", "hf://owner/name").code == 2
    assert pratique("fetch", "hf://owner/name", tmp_path, "--config", "x.json").code == 2


def test_a_source_that_cannot_be_fetched_is_told_in_one_line(pratique: Run, tmp_path: Path) -> None:
    result = pratique("fetch", "ftp://user:pa55word@host/model", tmp_path / "model")
    assert result.code == 3
    (line,) = [line for line in result.err.splitlines() if line.startswith("error:")]
    assert "DownloadFailed: ftp://host/model is not something to fetch" in line
    assert "pa55word" not in result.err


def test_a_person_is_told_what_stands_for_the_secret(pratique: Run, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("one\ntwo\n")
    result = pratique("fetch", "hf://owner/name", tmp_path / "m", "--credentials", tmp_path)
    assert (result.code, "of the Secret" in result.err, "--credentials DIR" in result.err) == (3, True, True)


def test_a_name_without_a_scheme_is_told_what_a_source_begins_with(pratique: Run, tmp_path: Path) -> None:
    for command in (("fetch", "user:pa55word@host/model", tmp_path / "model"), ("resolve", "owner/name")):
        result = pratique(*command)
        assert (result.code, "begins with hf://" in result.err, "pa55word" in result.err) == (3, True, False)


def test_credentials_that_are_not_there_are_told(pratique: Run, tmp_path: Path) -> None:
    result = pratique("fetch", "hf://owner/name", tmp_path / "m", "--credentials", tmp_path / "none")
    assert result.code == 3
    assert "does not exist" in result.err

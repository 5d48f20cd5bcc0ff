"""Secrets are read from a mounted folder and leave the process in no text."""

import logging
from pathlib import Path

import pytest

from pratique_server.fetch.errors import FetchError
from pratique_server.fetch.secrets import Credentials, Redactor, clean_url, read_credentials


def test_reads_one_file_for_each_key_without_its_line_feed(tmp_path: Path) -> None:
    for key, value in {"token": "hf_x\n", "accessKeyId": "A", "secretAccessKey": "S", "username": "u"}.items():
        (tmp_path / key).write_text(value)
    credentials = read_credentials(str(tmp_path))
    assert (credentials.token, credentials.access_key_id, credentials.username) == ("hf_x", "A", "u")
    assert credentials.password is None
    assert credentials.ca_path is None


def test_a_secret_is_found_in_every_form_in_which_a_peer_may_give_it_back() -> None:
    """Servers repeat what they refuse, and what they say is cut before it is shown."""
    credentials = Credentials(token="hf_a/very+secret", username="me", password="pa55word")
    redactor = Redactor(credentials.secret_values())
    for said in ("hf_a/very+secret", "hf_a%2Fvery%2Bsecret", "Basic bWU6cGE1NXdvcmQ=", "no such token hf_a/very+se…"):
        assert not any(part in redactor.clean(said) for part in ("hf_a", "bWU6", "very"))
    assert redactor.clean("hf_…") == "hf_…"


@pytest.mark.parametrize(
    ("files", "part"),
    [
        ({"accessKeyId": "A"}, "accessKeyId and secretAccessKey"),
        ({"password": "p"}, "without a username"),
        ({"token": "two\nlines"}, "one line"),
        ({"token": "x" * 70_000}, "one line"),
    ],
)
def test_half_of_a_pair_and_more_than_a_line_are_told(tmp_path: Path, files: dict[str, str], part: str) -> None:
    for key, value in files.items():
        (tmp_path / key).write_text(value)
    with pytest.raises(FetchError, match=part):
        read_credentials(str(tmp_path))


@pytest.mark.parametrize(
    ("url", "clean"),
    [
        ("https://user:pw@host:1/a/b?sig=x#y", "https://host:1/a/b?***"),
        ("https://host/a", "https://host/a"),
        ("s3://bucket/x", "s3://bucket/x"),
    ],
)
def test_a_url_loses_what_could_open_something(url: str, clean: str) -> None:
    assert clean_url(url) == clean


def test_a_log_line_of_any_library_is_cleaned(caplog: pytest.LogCaptureFixture) -> None:
    caplog.handler.addFilter(Redactor(["hf_averysecrettoken", "pw"]))
    try:
        raise ValueError("refused hf_averysecrettoken at https://u:p@host/x?sig=abc")
    except ValueError:
        logging.getLogger("urllib3").exception("GET %s", "https://host/x?X-Amz-Signature=abc")
    assert "hf_averysecrettoken" not in caplog.text
    assert "abc" not in caplog.text
    assert "https://host/x?***" in caplog.text
    assert "ValueError" in caplog.text

"""The credentials of a download, and how every text that leaves the process is freed of them.

Credentials are one file for each key of a Secret. What is cleaned: the values themselves, and of every URL the user name, the password
and the query (that is where presigned URLs carry their signature).
"""

import base64
import logging
import re
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote, quote_plus, urlsplit

from pratique_server.fetch.errors import FetchError

_URL: Final = re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s'\"<>\\^`{}|]+", re.IGNORECASE)
_SECRET_BYTES_MAX: Final = 64 * 1024
# A shorter value would take ordinary words out of sentences.
_SECRET_LENGTH_MIN: Final = 4
# A person chose these; all others are made by a machine, out of ASCII, and go into headers that can hold nothing else.
_ANY_TEXT: Final = ("username", "password")
HIDDEN: Final = "***"
# What would steer the terminal of whoever reads it: control characters but line feed and tab, and what turns the direction of writing.
_STEERING: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
CUT: Final = "…"


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """All optional; ``ca_path`` names a PEM file of authorities to trust besides the usual ones."""

    token: str | None = None
    username: str | None = None
    password: str | None = None
    access_key_id: str | None = None
    secret_access_key: str | None = None
    session_token: str | None = None
    ca_path: Path | None = None

    def secret_values(self) -> tuple[str, ...]:
        """Every form in which one goes over the wire, and so may come back in somebody's error message."""
        values = [value for value in (self.token, self.password, self.secret_access_key, self.session_token) if value]
        if self.username is not None:
            values.append(base64.b64encode(f"{self.username}:{self.password or ''}".encode()).decode())
        return tuple(dict.fromkeys([*values, *map(quote_plus, values), *(quote(value, safe="") for value in values)]))


def read_credentials(folder: str | None) -> Credentials:
    """Read a mounted Secret. Raises ``FetchError`` when a file that is there cannot be read, or half of a pair is missing."""
    if folder is None:
        return Credentials()
    root = Path(folder)
    if not root.is_dir():
        raise FetchError(f"The credentials folder {folder} does not exist: is the Secret there?")
    ca_path = root / "ca.crt"
    credentials = Credentials(
        token=_read(root / "token"),
        username=_read(root / "username"),
        password=_read(root / "password"),
        access_key_id=_read(root / "accessKeyId"),
        secret_access_key=_read(root / "secretAccessKey"),
        session_token=_read(root / "sessionToken"),
        ca_path=ca_path if ca_path.is_file() else None,
    )
    if (credentials.access_key_id is None) != (credentials.secret_access_key is None):
        raise FetchError("The Secret has only one of accessKeyId and secretAccessKey; give both")
    if credentials.password is not None and credentials.username is None:
        raise FetchError("The Secret has a password without a username")
    return credentials


def _read(path: Path) -> str | None:
    if not path.is_file():
        return None
    try:
        with path.open("rb") as file:
            content = file.read(_SECRET_BYTES_MAX + 1)
        # People make Secrets from files that end with a line feed.
        text = content.decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise FetchError(f"The key {path.name} of the Secret cannot be read: {error}") from error
    if len(content) > _SECRET_BYTES_MAX or any(ord(char) < 32 or ord(char) == 127 for char in text):
        raise FetchError(f"The key {path.name} of the Secret is not one line of text")
    if path.name not in _ANY_TEXT and not text.isascii():
        raise FetchError(
            f"The key {path.name} of the Secret has characters that none has (a quotation mark of a text editor, an invisible one): "
            "copy it again"
        )
    return text or None


def clean_url(url: str) -> str:
    """The URL without user name, password, query and fragment."""
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
    except ValueError:
        return HIDDEN
    return f"{parts.scheme}://{host}{parts.path}" + (f"?{HIDDEN}" if parts.query else "")


def _without_beginning(text: str, secret: str) -> str:
    """The text without a beginning of the secret at its end."""
    for length in range(min(len(text), len(secret) - 1), _SECRET_LENGTH_MIN, -1):
        if text.endswith(secret[:length]):
            return f"{text[:-length]}{HIDDEN}"
    return text


class Redactor(logging.Filter):
    """``clean`` frees a text of secrets, and of what a peer may have put into it for a terminal; as a filter on a log handler it does so
    with every message, whichever library wrote it."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        super().__init__()
        self._secrets = tuple(sorted((s for s in secrets if len(s) >= _SECRET_LENGTH_MIN), key=len, reverse=True))

    def clean(self, text: str) -> str:
        text = _STEERING.sub("\ufffd", text)
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
            *cut, rest = text.split(CUT)  # a long text was cut, perhaps in the middle of it
            text = CUT.join([*(_without_beginning(piece, secret) for piece in cut), rest])
        return _URL.sub(lambda match: clean_url(match[0]), text)

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = self.clean(record.getMessage()), ()
        if record.exc_info and record.exc_info[1] is not None:
            # Formatted here, where it can be cleaned: a traceback repeats the messages of every error in the chain.
            record.msg += "\n" + self.clean("".join(traceback.format_exception(record.exc_info[1])))
            record.exc_info = record.exc_text = None  # the text another handler may have made of it, too
        return True

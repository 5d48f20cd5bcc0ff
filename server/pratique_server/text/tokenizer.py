"""Text to ids and back, with the tokenizer that ``transformers`` would use for the folder, loaded from local files only.

``encode`` never adds special tokens by itself: the template writes them, and a second BOS is a classic silent fault. Nothing
here changes the tokenizer after loading, so it may be used from several threads.
"""

import json
import re
from collections.abc import Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Self

from pratique_server.artifacts.errors import FolderError, ManifestError
from pratique_server.artifacts.files import LoadedFile, hash_json_bytes
from pratique_server.artifacts.folders import require_tokenizer_folder
from pratique_server.artifacts.tokenizer_files import TOKENIZER_CONFIG_FILE, TokenizerFiles, read_tokenizer_files
from pratique_server.imports import MODELS, import_large

# Settings of the compiled tokenizer that ``encode`` and ``decode`` never use.
_UNUSED_SETTINGS = ("truncation", "padding", "post_processor")

_BYTE_TOKEN = re.compile(r"^<0x([0-9A-Fa-f]{2})>$")


class TokenizerError(Exception):
    """The tokenizer cannot be loaded; the message is a sentence a person can act on."""


class Tokenizer:
    """Wraps the compiled tokenizer (``backend``), the special tokens that the folder's configuration names and the files it came from."""

    def __init__(self, backend: Any, special_tokens: dict[str, str], read: TokenizerFiles | None = None) -> None:
        self._backend = backend
        self.files: tuple[LoadedFile, ...] = read.files if read else ()
        self.adds_bos = read.adds_bos if read else False
        self.adds_eos = read.adds_eos if read else False
        self._backend.no_truncation()
        self._backend.no_padding()
        self.special_tokens = special_tokens

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Load from a folder. Raises ``TokenizerError``; never reaches for the network or a home directory."""
        import_large(MODELS, "transformers.models.auto.tokenization_auto")
        from transformers import AutoTokenizer

        folder = Path(path)
        try:
            before = _read_files(folder)
        except TokenizerError:
            _explain_folder(folder)
            raise
        try:
            loaded = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
        except Exception as error:  # the libraries below raise anything, even bare Exception, for a broken file
            if _names_code(folder):
                raise TokenizerError(
                    f"The tokenizer in {folder} names code of its own (auto_map in {TOKENIZER_CONFIG_FILE}), which is never "
                    "run, not even with trustRemoteCode. Serve one that a class of the library can load"
                ) from error
            _explain_folder(folder)
            raise TokenizerError(f"The tokenizer in {folder} cannot be loaded: {_first_line(error)}") from error
        if not getattr(loaded, "is_fast", False):
            raise TokenizerError(f"The tokenizer in {folder} has no fast form (tokenizer.json), which serving needs")
        # The library reads the files by itself: what was hashed is what it read only if nothing changed meanwhile.
        if _read_files(folder) != before:
            raise TokenizerError(f"The tokenizer in {folder} changed while it was being loaded")
        special = {name: str(token) for name, token in loaded.special_tokens_map.items() if isinstance(token, str)}
        return cls(loaded.backend_tokenizer, special, before)

    def encode(self, text: str) -> list[int]:
        """Ids of the text; special tokens written in the text become their ids."""
        return list(self._backend.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of the ids; bytes that are not valid UTF-8 show as U+FFFD. Ids that name no token add nothing."""
        return str(self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes one token stands for, also when it is a fragment of a character."""
        return bytes(self._bytes_of(token_id))

    @cached_property
    def compiled(self) -> str:
        """Digest of the compiled tokenizer. The library may read files that no list of names foresees (``vocab.txt``, one
        named in ``fast_tokenizer_files``) and lets the folder's ``config.json`` choose the class: what came out is hashed."""
        return hash_json_bytes("compiled", self._backend.to_str().encode(), _UNUSED_SETTINGS).sha256

    @cached_property
    def vocab_size(self) -> int:
        """Number of tokens, added ones included. A model's own vocabulary may be larger (padding rows)."""
        return int(self._backend.get_vocab_size(with_added_tokens=True))

    @cached_property
    def bos_id(self) -> int | None:
        return self._special_id("bos_token")

    @cached_property
    def eos_id(self) -> int | None:
        return self._special_id("eos_token")

    @cached_property
    def pad_id(self) -> int | None:
        return self._special_id("pad_token")

    @cached_property
    def unk_id(self) -> int | None:
        return self._special_id("unk_token")

    def token_id(self, token: str) -> int | None:
        """Id of one token's exact text, or None."""
        found = self._backend.token_to_id(token)
        return None if found is None else int(found)

    def _special_id(self, role: str) -> int | None:
        text = self.special_tokens.get(role)
        return None if text is None else self.token_id(text)

    @cached_property
    def _bytes_of(self) -> Any:
        return lru_cache(maxsize=8192)(self._compute_bytes)

    def _compute_bytes(self, token_id: int) -> bytes:
        token = self._backend.id_to_token(token_id)
        if token is None:
            return b""
        if token_id in self._added_ids:
            return str(token).encode()
        if self._is_byte_level:
            return bytes(_BYTE_OF_CHARACTER.get(character, ord("?")) for character in token)
        fragment = _BYTE_TOKEN.match(token)
        return bytes([int(fragment.group(1), 16)]) if fragment else token.replace("▁", " ").encode()

    @cached_property
    def _added_ids(self) -> frozenset[int]:
        return frozenset(self._backend.get_added_tokens_decoder())

    @cached_property
    def _is_byte_level(self) -> bool:
        return '"ByteLevel"' in json.dumps(json.loads(self._backend.to_str()).get("decoder"))


def _character_of_byte() -> dict[int, str]:
    """The printable stand-ins that byte-level BPE vocabularies use: printable Latin-1 stands for itself, the rest follows U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(0x100 + n) for n, byte in enumerate(others)}


_BYTE_OF_CHARACTER = {character: byte for byte, character in _character_of_byte().items()}


def _read_files(folder: Path) -> TokenizerFiles:
    try:
        return read_tokenizer_files(folder)
    except (ManifestError, OSError) as error:
        raise TokenizerError(f"The tokenizer in {folder} cannot be loaded: {_first_line(error)}") from error


def _explain_folder(folder: Path) -> None:
    """Raise what the folder itself is to blame for: the library's own sentence names no file, or the wrong one."""
    try:
        require_tokenizer_folder(folder)
    except FolderError as error:
        raise TokenizerError(str(error)) from error


def _names_code(folder: Path) -> bool:
    config = folder / TOKENIZER_CONFIG_FILE
    return config.is_file() and b'"auto_map"' in config.read_bytes()


def _first_line(error: Exception) -> str:
    """The sentence a library's error begins with; one that ends in a colon goes on in the lines after it."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    text = lines[0] if not lines[0].rstrip().endswith(":") else " ".join(" ".join(lines).split())
    return text[:300]

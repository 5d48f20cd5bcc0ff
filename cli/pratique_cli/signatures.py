"""Make and check Ed25519 signatures of records, with keys in PEM files. What is signed is the contract's (``signature.py``)."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pratique_cli.errors import CliError, missing_extra
from pratique_cli.specs import read_text
from pratique_contract.signature import SignatureError, format_signature, signed_bytes

try:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

    from pratique_operator.release import public_keys
    from pratique_operator.release.public_keys import PublicKeyError, parse_public_keys
except ImportError as error:
    raise missing_extra("cli", error) from error

PASSWORD_VARIABLE: Final = "PRATIQUE_KEY_PASSWORD"
PUBLIC_SUFFIX: Final = ".pub"


def make_key_files(private: Path) -> Path:
    """Write a new pair: the private key for its owner's eyes only (encrypted when ``PRATIQUE_KEY_PASSWORD`` is set), the public one
    beside it. Returns the public key's path."""
    key = Ed25519PrivateKey.generate()
    password = os.environ.get(PASSWORD_VARIABLE)
    encryption: serialization.KeySerializationEncryption = (
        serialization.BestAvailableEncryption(password.encode()) if password else serialization.NoEncryption()
    )
    secret = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
    shown = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    public = private.with_name(f"{private.name}{PUBLIC_SUFFIX}")
    if public.exists():
        raise CliError(f"{public} exists; a key is never overwritten")
    _write_new(private, secret, mode=0o600)
    _write_new(public, shown, mode=0o644)
    return public


def _write_new(path: Path, content: bytes, *, mode: int) -> None:
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
    except FileExistsError as error:
        raise CliError(f"{path} exists; a key is never overwritten") from error
    except OSError as error:
        raise CliError(f"{path} cannot be written: {error.strerror or error}") from error


def read_private_key(path: Path) -> Ed25519PrivateKey:
    """From a PEM file, encrypted or not; raises ``CliError``."""
    password = os.environ.get(PASSWORD_VARIABLE)
    try:
        key = serialization.load_pem_private_key(
            read_text(path).encode(), password=password.encode() if password else None
        )
    except TypeError as error:  # encrypted without a password, or a password without encryption
        raise CliError(f"{path} cannot be read: {error} ({PASSWORD_VARIABLE})") from error
    except ValueError as error:
        raise CliError(f"{path} holds no readable private key in PEM form (wrong file or password)") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise CliError(f"{path} holds another kind of key; records are signed with Ed25519 (release keygen)")
    return key


def read_public_keys(path: Path) -> list[Ed25519PublicKey]:
    """Every public key of a PEM file; raises ``CliError``. A private key is refused: it has no business where one verifies."""
    try:
        return parse_public_keys(read_text(path))
    except PublicKeyError as error:
        raise CliError(f"{path} {error}") from error


def sign_text(key: Ed25519PrivateKey, record_text: str) -> str:
    """The text of the signature's file."""
    return format_signature(key.sign(signed_bytes(record_text)))


def is_signed_by(keys: Sequence[Ed25519PublicKey], record_text: str, signature_text: str) -> bool:
    """Whether one of the keys signed these very bytes. Raises ``CliError`` for a text that is no signature at all."""
    try:
        return public_keys.is_signed_by(keys, record_text, signature_text)
    except SignatureError as error:
        raise CliError(str(error)) from error

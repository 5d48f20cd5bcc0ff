"""Ed25519 public keys in PEM text, and whether one of them made a signature. The command line checks by these very functions.

In go texts; out come keys or a verdict. Where a text came from is the caller's to say: ``PublicKeyError`` reads on from its name.
"""

import re
from collections.abc import Sequence
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from pratique_contract.signature import parse_signature, signed_bytes

_PEM_BLOCK: Final = re.compile(r"-----BEGIN [A-Z0-9 ]+-----.+?-----END [A-Z0-9 ]+-----", re.DOTALL)


class PublicKeyError(ValueError):
    """What is wrong with the text, as the rest of a sentence that begins with its place: ``holds …``."""


def pem_blocks(pem: str) -> list[str]:
    """Every block of the text, armour included."""
    return _PEM_BLOCK.findall(pem)


def parse_public_keys(pem: str) -> list[Ed25519PublicKey]:
    """Every key of the text, at least one; raises ``PublicKeyError`` for anything else in it."""
    keys = []
    for block in pem_blocks(pem):
        try:
            key = serialization.load_pem_public_key(block.encode())
        except ValueError as error:
            raise PublicKeyError("holds something else than public keys in PEM form") from error
        if not isinstance(key, Ed25519PublicKey):
            raise PublicKeyError("holds another kind of key than Ed25519")
        keys.append(key)
    if not keys:
        raise PublicKeyError("holds no public key in PEM form")
    return keys


def is_signed_by(keys: Sequence[Ed25519PublicKey], record_text: str, signature_text: str) -> bool:
    """Whether one of the keys signed these very bytes; raises ``SignatureError`` for a text that is no signature at all."""
    signature, message = parse_signature(signature_text), signed_bytes(record_text)
    return any(_verifies(key, signature, message) for key in keys)


def _verifies(key: Ed25519PublicKey, signature: bytes, message: bytes) -> bool:
    try:
        key.verify(signature, message)
    except InvalidSignature:
        return False
    return True

"""The signature of a release record: what is signed, and how the signature is written. No cryptography in here.

Signed are the exact bytes of the record's file, nothing before or after them: any Ed25519 program (RFC 8032, pure: no hash beforehand)
can make or check it, ``openssl pkeyutl -verify -rawin`` among them. The signature stands beside the record, base64 in one line:
``record.json.sig`` beside ``record.json``, as a file and as a key of the ConfigMap. A ConfigMap therefore carries the file's own text.
"""

import base64
import binascii
from typing import Final

from pratique_contract import constants

SIGNATURE_BYTES: Final = 64


class SignatureError(ValueError):
    """The text is not a signature, or not one of this record; the message is a sentence a person can act on."""


def signed_bytes(record_text: str) -> bytes:
    """The message that is signed, from the text of the file or of the ConfigMap's key."""
    return record_text.encode()


def signature_name(record_name: str) -> str:
    """Where the signature of a file, or of a ConfigMap's key, is looked for."""
    return f"{record_name}{constants.SIGNATURE_SUFFIX}"


def format_signature(signature: bytes) -> str:
    """The text of the signature's file: base64 and a line end."""
    if len(signature) != SIGNATURE_BYTES:
        raise SignatureError(f"An Ed25519 signature has {SIGNATURE_BYTES} bytes, not {len(signature)}")
    return f"{base64.b64encode(signature).decode()}\n"


def parse_signature(text: str) -> bytes:
    """The 64 bytes; raises ``SignatureError``. White space around the line is ignored, nothing else is."""
    try:
        signature = base64.b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError) as error:
        raise SignatureError("The signature is not one line of base64") from error
    if len(signature) != SIGNATURE_BYTES:
        raise SignatureError(f"The signature has {len(signature)} bytes; Ed25519 makes {SIGNATURE_BYTES}")
    return signature

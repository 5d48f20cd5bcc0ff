"""Whether a record is signed by a key that is trusted: Ed25519 over the exact bytes of ``record.json``, checked before they are parsed.

Two lots of keys can be asked for: the service's own (``spec.release.signature``) and the operator's (``signatureKeys``), which whoever
creates services cannot choose. Each lot is a PEM text with one or more public keys; one of them must have signed, so that keys can be
rotated: both in the text first, then every record signed anew, then the old one out.
"""

from collections.abc import Sequence
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from pratique_contract import constants
from pratique_contract.signature import SignatureError
from pratique_operator.api.types import InferenceServiceSpec
from pratique_operator.config import OperatorConfig
from pratique_operator.errors import SignatureInvalidError
from pratique_operator.release.public_keys import PublicKeyError, is_signed_by, parse_public_keys, pem_blocks
from pratique_operator.release.references import RECORD_FIELD, Reference, References, signature_key

SIGNATURE_FIELD: Final = "spec.release.signature"


def check_signature(spec: InferenceServiceSpec, references: References, config: OperatorConfig) -> None:
    """Raises ``SignatureInvalidError`` when a signature is asked for and is not there or not right; ``InvalidSpecError`` when the
    key's own object is missing."""
    asked = [] if spec.release.signature is None else [(SIGNATURE_FIELD, _service_keys(spec, references))]
    if config.signature_keys:
        asked.append(("the operator's signatureKeys", config.signature_keys))
    elif config.require_signature and not asked:
        raise SignatureInvalidError(
            f"{SIGNATURE_FIELD}: this operator serves signed releases only (requireSignature); name the public key, and a signed record"
        )
    if not asked:
        return
    if spec.release.record_ref is None:
        raise SignatureInvalidError(
            f"{RECORD_FIELD}: a signature is asked for, and only a record that is named can carry one"
        )
    reference = Reference("ConfigMap", spec.release.record_ref.name)
    if not references.has(reference, constants.RECORD_FILE):
        return  # without a record there is nothing to check, and nothing that could start: ``read_record`` says so
    record = references.text(reference, constants.RECORD_FILE, where=RECORD_FIELD)
    if not references.has(reference, constants.RECORD_SIGNATURE_FILE):
        raise SignatureInvalidError(
            f"{RECORD_FIELD}: ConfigMap {reference.name} has no {constants.RECORD_SIGNATURE_FILE}; "
            "pratique release sign makes a ConfigMap that has"
        )
    signature = references.text(reference, constants.RECORD_SIGNATURE_FILE, where=RECORD_FIELD)
    for where, pem in asked:
        _verify(record, signature, read_keys(pem, where=where), where=where, config_map=reference.name)


def _service_keys(spec: InferenceServiceSpec, references: References) -> str:
    found = signature_key(spec)
    if found is None:
        raise SignatureInvalidError(f"{SIGNATURE_FIELD}: it names no key")
    reference, key, where = found
    return references.text(reference, key, where=where)


def read_keys(pem: str, *, where: str) -> list[Ed25519PublicKey]:
    """Every key of a PEM text; raises ``SignatureInvalidError`` for anything in it that is not an Ed25519 public key."""
    if any("PRIVATE KEY" in block for block in pem_blocks(pem)):
        raise SignatureInvalidError(
            f"{where}: it holds a private key; replace the key pair, and give the public key only"
        )
    try:
        return parse_public_keys(pem)
    except PublicKeyError as error:
        raise SignatureInvalidError(f"{where}: it {error}") from error


def _verify(record: str, text: str, keys: Sequence[Ed25519PublicKey], *, where: str, config_map: str) -> None:
    try:
        if is_signed_by(keys, record, text):
            return
    except SignatureError as error:
        raise SignatureInvalidError(f"{RECORD_FIELD}: ConfigMap {config_map}: {error}") from error
    raise SignatureInvalidError(
        f"{RECORD_FIELD}: ConfigMap {config_map}: the signature is not of this {constants.RECORD_FILE}, or of another key than {where} has"
    )

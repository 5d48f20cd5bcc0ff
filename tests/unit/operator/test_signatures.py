"""Signed records: what is asked for and not there, not right or not readable starts no pod, and says what is wrong."""

import base64
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa

from pratique_contract import constants
from pratique_contract.signature import format_signature
from pratique_operator.api.types import parse_spec
from pratique_operator.config import OperatorConfig
from pratique_operator.desired.revision import Target, compute_target
from pratique_operator.errors import InvalidSpecError, RecordError, SignatureInvalidError
from pratique_operator.release.references import Reference, References, required_references
from pratique_operator.reporting.findings import find_problem
from tests.support.releases import make_record
from tests.unit.operator.worlds import make_snapshot

RECORD = make_record()
TEXT = RECORD.to_json() + "\n"  # the file's own text, not the canonical form the operator makes of it
KEY, OTHER = ed25519.Ed25519PrivateKey.generate(), ed25519.Ed25519PrivateKey.generate()
KEY_REF = {"configMapKeyRef": {"name": "keys", "key": "release.pub"}}

RELEASE = {"fingerprint": RECORD.fingerprint, "recordRef": {"name": "rel"}, "signature": KEY_REF}


def pem(*keys: ed25519.Ed25519PrivateKey) -> str:
    form = (serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return "".join(key.public_key().public_bytes(*form).decode() for key in keys)


PRIVATE = KEY.private_bytes(
    serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
).decode()
RSA = (
    rsa.generate_private_key(public_exponent=65537, key_size=2048)
    .public_key()
    .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    .decode()
)


def signed(by: ed25519.Ed25519PrivateKey = KEY, text: str = TEXT) -> str:
    return format_signature(by.sign(text.encode()))


def target(
    *,
    signature: str | None = None,
    text: str = TEXT,
    keys: str = pem(KEY),
    signature_ref: dict[str, Any] | None = KEY_REF,
    secret: bool = False,
    require: bool = False,
    operator_keys: str = "",
    record: bool = True,
) -> Target:
    data = {constants.RECORD_FILE: text}
    if signature is not None:
        data[constants.RECORD_SIGNATURE_FILE] = signature
    release: dict[str, Any] = {"fingerprint": RECORD.fingerprint}
    if record:
        release["recordRef"] = {"name": "rel"}
    if signature_ref is not None:
        release["signature"] = signature_ref
    objects = {
        Reference("ConfigMap", "rel"): {"data": data},
        Reference("ConfigMap", "keys"): {"data": {"release.pub": keys}},
    }
    if secret:
        objects[Reference("Secret", "keys")] = {"data": {"release.pub": base64.b64encode(keys.encode()).decode()}}
    config = OperatorConfig(
        server_image="a/b:1", allow_file_sources=True, require_signature=require, signature_keys=operator_keys
    )
    spec = parse_spec({"model": {"uri": "file:///models/x"}, "release": release})
    return compute_target(spec, References(objects), service="svc", namespace="ns", config=config)


def test_record_signed_by_the_named_key_is_served_and_the_signature_is_no_part_of_the_revision() -> None:
    unsigned = target(signature_ref=None)
    assert target(signature=signed()).revision == unsigned.revision
    assert target(
        signature=signed(), secret=True, signature_ref={"secretKeyRef": KEY_REF["configMapKeyRef"]}
    ).revision == (unsigned.revision)


def test_one_of_several_keys_is_enough_so_that_keys_can_be_rotated() -> None:
    assert target(signature=signed(), keys=pem(OTHER, KEY))
    with pytest.raises(SignatureInvalidError, match="of another key"):
        target(signature=signed(), keys=pem(OTHER))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"signature": None}, "has no record.json.sig"),
        ({"signature": "nonsense!"}, "not one line of base64"),
        ({"signature": signed(OTHER)}, "not of this record.json"),
        ({"signature": signed(), "text": TEXT.replace("Ahoy", "Ahoi")}, "not of this record.json"),
        ({"signature": signed(), "text": TEXT + " "}, "not of this record.json"),
        ({"signature": signed(), "keys": "ssh-ed25519 AAAA"}, "no public key in PEM form"),
        ({"signature": signed(), "keys": PRIVATE}, "holds a private key"),
        ({"signature": signed(), "keys": RSA}, "another kind of key than Ed25519"),
        ({"signature": signed(), "keys": pem(KEY).replace("MCow", "AAAA")}, "something else than public keys"),
        ({"signature": signed(), "signature_ref": {}}, "names no key"),
    ],
)
def test_wrong_signature_or_key_is_a_sentence(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SignatureInvalidError, match=sentence):
        target(**changes)


def test_missing_key_names_the_field_and_a_missing_record_is_still_a_missing_record() -> None:
    with pytest.raises(InvalidSpecError, match=r"signature\.configMapKeyRef: ConfigMap keys has no key other"):
        target(signature=signed(), signature_ref={"configMapKeyRef": {"name": "keys", "key": "other"}})
    spec = parse_spec({"model": {"uri": "file:///m"}, "release": RELEASE})
    found = References({Reference("ConfigMap", "keys"): {"data": {"release.pub": pem(KEY)}}})
    config = OperatorConfig(server_image="a/b:1", allow_file_sources=True)
    with pytest.raises(RecordError, match="there is no ConfigMap rel") as raised:
        compute_target(spec, found, service="svc", namespace="ns", config=config)
    assert not isinstance(raised.value, SignatureInvalidError)


def test_operator_that_requires_signatures_refuses_every_service_without() -> None:
    assert target(require=True, signature=signed())
    with pytest.raises(SignatureInvalidError, match="requireSignature"):
        target(require=True, signature_ref=None)
    with pytest.raises(SignatureInvalidError, match="requireSignature"):
        target(require=True, signature_ref=None, record=False)


def test_the_operators_keys_cannot_be_replaced_by_a_service() -> None:
    assert target(operator_keys=pem(KEY), signature_ref=None, signature=signed())
    with pytest.raises(SignatureInvalidError, match="than the operator's signatureKeys"):
        target(operator_keys=pem(KEY), keys=pem(OTHER), signature=signed(OTHER))
    with pytest.raises(SignatureInvalidError, match="only a record that is named"):
        target(operator_keys=pem(KEY), signature_ref=None, record=False)


def test_changed_key_is_looked_at_again() -> None:
    """The operator asks for the versions of everything a spec refers to."""
    spec = parse_spec({"model": {"uri": "file:///m"}, "release": RELEASE})
    assert Reference("ConfigMap", "keys") in required_references(spec)


def test_status_gives_the_signature_a_reason_of_its_own() -> None:
    problem = find_problem(make_snapshot(blocked=SignatureInvalidError("spec.release.recordRef: no")))
    assert problem is not None
    assert problem.reason == "SignatureInvalid"

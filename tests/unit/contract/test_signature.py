"""The written form of a record's signature: one line of base64 beside the record."""

import pytest

from pratique_contract import constants
from pratique_contract.signature import SignatureError, format_signature, parse_signature, signature_name, signed_bytes


def test_a_signature_survives_its_text() -> None:
    signature = bytes(range(64))
    text = format_signature(signature)
    assert text.endswith("\n")
    assert parse_signature(text) == signature
    assert parse_signature(f"  {text}\n") == signature


def test_the_message_is_the_files_own_bytes() -> None:
    assert signed_bytes('{"a": "ü"}\n') == '{"a": "ü"}\n'.encode()


def test_the_signature_stands_beside_the_record() -> None:
    assert signature_name(constants.RECORD_FILE) == constants.RECORD_SIGNATURE_FILE == "record.json.sig"


@pytest.mark.parametrize(
    "text", ["", "not base64!", "AAAA", "A" * 88, format_signature(bytes(64)).strip()[:-4] + "\nAA=="]
)
def test_what_is_not_a_signature_gets_a_sentence(text: str) -> None:
    with pytest.raises(SignatureError, match="signature"):
        parse_signature(text)


def test_only_64_bytes_are_a_signature() -> None:
    with pytest.raises(SignatureError, match="64 bytes, not 3"):
        format_signature(b"abc")

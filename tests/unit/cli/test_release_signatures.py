"""``pratique release keygen | sign | verify-signature``: real keys, real bytes, and what must not verify."""

import shutil
import stat
import subprocess
from pathlib import Path

import pytest
import yaml

from pratique_operator.api.types import parse_spec
from pratique_operator.config import OperatorConfig
from pratique_operator.errors import SignatureInvalidError
from pratique_operator.release.references import Reference, References
from pratique_operator.release.signatures import check_signature
from tests.support.releases import make_record
from tests.unit.cli.conftest import Run


@pytest.fixture
def record_file(tmp_path: Path) -> Path:
    path = tmp_path / "record.json"
    path.write_text(f"{make_record().to_json()}\n")
    return path


@pytest.fixture
def key(pratique: Run, tmp_path: Path) -> Path:
    path = tmp_path / "key.pem"
    assert pratique("release", "keygen", path).code == 0
    return path


def public(key: Path) -> Path:
    return key.with_name(f"{key.name}.pub")


def test_a_signed_record_verifies_and_a_changed_byte_does_not(pratique: Run, record_file: Path, key: Path) -> None:
    assert pratique("release", "sign", record_file, "--key", key).code == 0
    result = pratique("release", "verify-signature", record_file, "--key", public(key))
    assert (result.code, result.out) == (0, f"Signed by {public(key)}: release {make_record().fingerprint}\n")
    record_file.write_text(record_file.read_text().rstrip("\n"))  # the same record in other bytes
    assert pratique("release", "verify-signature", record_file, "--key", public(key)).code == 1


def test_another_key_does_not_verify_and_one_of_several_does(
    pratique: Run, record_file: Path, key: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.pem"
    pratique("release", "keygen", other)
    pratique("release", "sign", record_file, "--key", key)
    assert pratique("release", "verify-signature", record_file, "--key", public(other)).code == 1
    both = tmp_path / "both.pub"
    both.write_text(public(other).read_text() + public(key).read_text())
    assert pratique("release", "verify-signature", record_file, "--key", both).code == 0


def test_the_config_map_carries_the_files_bytes_and_the_signature(
    pratique: Run, record_file: Path, key: Path, tmp_path: Path
) -> None:
    made = pratique("release", "sign", record_file, "--key", key, "-o", "configmap", "--name", "tiny-release")
    config_map = yaml.safe_load(made.out)
    assert config_map["data"]["record.json"] == record_file.read_text()
    wrapped = tmp_path / "map.yaml"
    wrapped.write_text(made.out)
    assert pratique("release", "verify-signature", wrapped, "--key", public(key)).code == 0
    pratique("release", "sign", record_file, "--key", key)
    shown = pratique("release", "show", record_file, "-o", "configmap", "--name", "tiny-release")
    assert shown.out == made.out, "Ed25519 is deterministic and show carries the signature that lies beside the record"


def test_openssl_accepts_the_signature(pratique: Run, record_file: Path, key: Path, tmp_path: Path) -> None:
    """Nothing of ours is needed to check one: the message is the file, the signature is base64."""
    openssl = shutil.which("openssl")
    assert openssl, "openssl is part of every Debian with ca-certificates"
    pratique("release", "sign", record_file, "--key", key)
    binary = tmp_path / "sig.bin"
    subprocess.run([openssl, "base64", "-d", "-A", "-in", f"{record_file}.sig", "-out", binary], check=True)
    command = [openssl, "pkeyutl", "-verify", "-rawin", "-pubin", "-inkey", public(key), "-in", record_file]
    checked = subprocess.run([*command, "-sigfile", binary], capture_output=True, text=True, check=False)
    assert "Signature Verified Successfully" in checked.stdout, checked.stderr


def test_the_private_key_is_its_owners_and_never_overwritten(pratique: Run, key: Path) -> None:
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    before = key.read_text()
    result = pratique("release", "keygen", key)
    assert (result.code, key.read_text()) == (3, before)
    assert "never overwritten" in result.err


def test_an_encrypted_key_needs_its_password(
    pratique: Run, record_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "locked.pem"
    monkeypatch.setenv("PRATIQUE_KEY_PASSWORD", "storm")
    pratique("release", "keygen", path)
    assert "ENCRYPTED" in path.read_text()
    assert pratique("release", "sign", record_file, "--key", path).code == 0
    monkeypatch.delenv("PRATIQUE_KEY_PASSWORD")
    result = pratique("release", "sign", record_file, "--key", path)
    assert result.code == 3
    assert "PRATIQUE_KEY_PASSWORD" in result.err


def test_wrong_files_get_a_sentence(pratique: Run, record_file: Path, key: Path) -> None:
    cases = {
        ("sign", record_file, "--key", public(key)): "no readable private key",
        ("sign", record_file, "--key", record_file): "no readable private key",
        ("verify-signature", record_file, "--key", public(key)): "has no signature beside it",
        ("verify-signature", record_file, "--key", key, "--signature", key): "something else than public keys",
        ("verify-signature", record_file, "--key", public(key), "--signature", key): "not one line of base64",
    }
    for arguments, sentence in cases.items():
        result = pratique("release", *arguments)
        assert (result.code, sentence in result.err) == (3, True), result


def test_the_operator_accepts_what_the_command_line_signs_and_nothing_else(
    pratique: Run, record_file: Path, key: Path
) -> None:
    """Two programs and one format: the ConfigMap as it is applied, and the public key as it was made."""
    made = pratique("release", "sign", record_file, "--key", key, "-o", "configmap", "--name", "tiny-release")
    config_map = yaml.safe_load(made.out)
    named = {"recordRef": {"name": "tiny-release"}, "signature": {"configMapKeyRef": {"name": "keys", "key": "pub"}}}
    release = {"fingerprint": make_record().fingerprint, **named}
    spec = parse_spec({"model": {"uri": "file:///models/tiny"}, "release": release})

    def check() -> None:
        objects = {
            Reference("ConfigMap", "tiny-release"): config_map,
            Reference("ConfigMap", "keys"): {"data": {"pub": public(key).read_text()}},
        }
        check_signature(spec, References(objects), OperatorConfig(server_image="a/b:1", allow_file_sources=True))

    check()
    config_map["data"]["record.json"] += "\n"
    with pytest.raises(SignatureInvalidError):
        check()

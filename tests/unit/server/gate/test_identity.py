"""What is said when the loaded release is not the approved one."""

from typing import Any

import pytest

from pratique_contract.canonical import digest_bytes
from pratique_contract.manifest import ChatTemplatePart
from pratique_contract.reasons import Reason
from pratique_server.gate.errors import CheckFailedError
from pratique_server.gate.identity import check_manifest
from tests.support.releases import TEMPLATE, make_digest, make_file, make_record


def test_a_changed_template_is_shown_where_it_changes() -> None:
    approved = make_record()
    changed = TEMPLATE.replace("content", "c0ntent")
    part = ChatTemplatePart(sha256=digest_bytes(changed.encode()), length=len(changed))
    observed = approved.manifest.model_copy(update={"chat_template": part})
    with pytest.raises(CheckFailedError) as caught:
        check_manifest(approved, observed, template=changed)
    assert caught.value.reason is Reason.TEMPLATE_MISMATCH
    index = TEMPLATE.index("content") + 1
    assert (
        f"chatTemplate: line 1, character {index} is '0' (U+0030), 'o' (U+006F) was recorded: " in caught.value.message
    )


def test_without_the_approved_text_its_digest_is_said() -> None:
    approved = make_record().model_copy(update={"chat_template": None})
    part = ChatTemplatePart(sha256=digest_bytes(b"other"), length=5)
    observed = approved.manifest.model_copy(update={"chat_template": part})
    with pytest.raises(CheckFailedError, match=r"^chatTemplate\."):
        check_manifest(approved, observed, template="other")


def _recompiled_by(**engine: Any) -> CheckFailedError:
    """The same tokenizer files, compiled to something else, with another engine part."""
    approved = make_record()
    manifest = approved.manifest
    observed = manifest.model_copy(
        update={
            "tokenizer": manifest.tokenizer.model_copy(update={"compiled": make_digest("recompiled")}),
            "engine": manifest.engine.model_copy(update=engine),
        }
    )
    with pytest.raises(CheckFailedError) as caught:
        check_manifest(approved, observed, template=TEMPLATE)
    return caught.value


def test_an_upgraded_library_is_named_as_the_cause_and_not_the_tokenizer_it_recompiled() -> None:
    libraries = {"torch": "2.13.0", "tokenizers": "0.23.0"}
    error = _recompiled_by(libraries=libraries)
    assert (error.reason, error.part) == (Reason.ENGINE_MISMATCH, "engine")
    assert error.message == (
        "engine.libraries.tokenizers: nothing was recorded, 0.23.0 is loaded, which makes another tokenizer of the same files; "
        "tokenizer also differs"
    )
    assert error.evidence[0].subject == "engine.libraries.tokenizers"


def test_the_servers_own_version_is_named_when_it_recompiles_the_tokenizer() -> None:
    error = _recompiled_by(build=make_digest("other build"))
    assert error.reason is Reason.ENGINE_MISMATCH
    assert "the record was made with another version of the server than the pod runs" in error.message


def test_a_changed_tokenizer_file_is_the_tokenizers_fault_even_beside_a_library_upgrade() -> None:
    approved = make_record()
    manifest = approved.manifest
    observed = manifest.model_copy(
        update={
            "tokenizer": manifest.tokenizer.model_copy(
                update={"compiled": make_digest("x"), "files": (make_file("tokenizer.json", "y"),)}
            ),
            "engine": manifest.engine.model_copy(update={"libraries": {"torch": "2.14.0"}}),
        }
    )
    with pytest.raises(CheckFailedError) as caught:
        check_manifest(approved, observed, template=TEMPLATE)
    assert caught.value.reason is Reason.TOKENIZER_MISMATCH
    assert caught.value.message.startswith("tokenizer.files[tokenizer.json].sha256: sha256:")


def test_what_cannot_be_seen_in_a_template_is_written_out() -> None:
    approved = make_record()
    for changed, shown in (
        (TEMPLATE.replace("{{", "{{\u200b", 1), "'\\u200b' (U+200B ZERO WIDTH SPACE)"),
        (TEMPLATE.replace("{{", "\n{{", 1), "'\\n' (U+000A)"),
        (TEMPLATE.replace("{{", "  {{", 1), "▸␣␣{{"),
        (TEMPLATE.replace("m['c", "m['с", 1), "'с' (U+0441 CYRILLIC SMALL LETTER ES), 'c' (U+0063) was recorded"),
    ):
        part = ChatTemplatePart(sha256=digest_bytes(changed.encode()), length=len(changed))
        with pytest.raises(CheckFailedError) as caught:
            check_manifest(approved, approved.manifest.model_copy(update={"chat_template": part}), template=changed)
        assert shown in caught.value.message

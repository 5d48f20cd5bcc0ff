"""What is said when the loaded release is not the approved one."""

import pytest

from pratique_contract.canonical import digest_bytes
from pratique_contract.manifest import ChatTemplatePart
from pratique_contract.reasons import Reason
from pratique_server.gate.errors import CheckFailedError
from pratique_server.gate.identity import check_manifest
from tests.support.releases import TEMPLATE, make_record


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
        f"chatTemplate: line 1, character {index} is '0' (U+0030), 'o' (U+006F) was approved: " in caught.value.message
    )


def test_without_the_approved_text_its_digest_is_said() -> None:
    approved = make_record().model_copy(update={"chat_template": None})
    part = ChatTemplatePart(sha256=digest_bytes(b"other"), length=5)
    observed = approved.manifest.model_copy(update={"chat_template": part})
    with pytest.raises(CheckFailedError, match=r"^chatTemplate\."):
        check_manifest(approved, observed, template="other")

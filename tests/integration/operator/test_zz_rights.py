"""The chart's rights, compared with the calls that all tests before this one really made (so it runs last)."""

from typing import Any

import pytest

from pratique_operator import kinds

pytestmark = pytest.mark.integration


def test_chart_grants_exactly_what_the_operator_calls(
    chart_rules: list[dict[str, Any]], recording: set[tuple[str, str, str]]
) -> None:
    assert len(recording) > 10, "this test needs the others to have run"
    # kopf lists and watches what the handlers are registered for.
    watched = {
        (verb, kind.group, kind.plural)
        for kind in (kinds.INFERENCE_SERVICE, *kinds.WATCHED)
        for verb in ("list", "watch")
    }
    granted = {
        (verb, group, resource)
        for rule in chart_rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert granted == recording | watched

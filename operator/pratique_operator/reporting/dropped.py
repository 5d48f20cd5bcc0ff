"""Fields of a manifest that the API server dropped because the CRD does not know them. Pure.

It does so without a word to clients that do not ask for strict validation, and what it drops is stored nowhere. The one trace there can
be is the manifest that client-side ``kubectl apply`` keeps in an annotation; clients that only create, update or patch leave none, and
server-side apply refuses such fields by itself.
"""

import json
from typing import Any, Final

from pydantic import ValidationError

from pratique_contract.canonical import JSON_ERRORS
from pratique_operator.api.types import InferenceServiceSpec, field_path

LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
FIELDS_MAX: Final = 10
_TOP: Final = frozenset({"apiVersion", "kind", "metadata", "spec", "status"})


def find_dropped(owner: dict[str, Any]) -> tuple[str, ...]:
    """Paths of the dropped fields, at most ``FIELDS_MAX``."""
    text = owner["metadata"].get("annotations", {}).get(LAST_APPLIED)
    try:
        applied = json.loads(text) if text else {}
    except JSON_ERRORS:
        return ()
    if not isinstance(applied, dict):
        return ()
    found = [str(name) for name in applied if name not in _TOP]
    try:
        InferenceServiceSpec.model_validate(applied.get("spec", {}))
    except ValidationError as error:
        found += [field_path(e["loc"]) for e in error.errors() if e["type"] == "extra_forbidden"]
    return tuple(found[:FIELDS_MAX])

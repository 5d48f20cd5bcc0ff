"""Read, wrap and stamp release records and manifests: everything of ``pratique release`` that needs no model."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pratique_cli.errors import CliError
from pratique_cli.specs import is_service, read_documents, read_text

if TYPE_CHECKING:
    from pratique_contract.manifest import ReleaseManifest
    from pratique_contract.record import ReleaseRecord

RECORD_REF_SUFFIX: Final = "-release"


def read_record(path: Path) -> "ReleaseRecord":
    """A record file, or the ConfigMap that carries one (YAML or JSON); raises ``CliError``."""
    from pratique_contract.record import RecordError, ReleaseRecord

    try:
        return ReleaseRecord.from_json(_record_text(path))
    except RecordError as error:
        raise CliError(f"{path}: {error}") from error


def read_manifest(path: Path) -> "ReleaseManifest":
    """A manifest file as ``release build`` writes it, or the manifest of a record."""
    import json

    from pydantic import ValidationError

    from pratique_contract.manifest import ReleaseManifest

    text = _record_text(path)
    try:
        value = json.loads(text)
    except ValueError as error:
        raise CliError(f"{path} is not JSON: {error}") from error
    if isinstance(value, dict) and "manifest" in value:
        return read_record(path).manifest
    if isinstance(value, dict):
        # What a pod's /manifest answers: the manifest with what is derived from it.
        value = {name: item for name, item in value.items() if name not in ("digests", "fingerprint")}
    try:
        return ReleaseManifest.from_json_value(value)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "manifest"
        raise CliError(f"{path} is neither a release record nor a manifest: {field}: {first['msg']}") from error


def _record_text(path: Path) -> str:
    text = read_text(path)
    if text.lstrip().startswith("{") and '"ConfigMap"' not in text:
        return text
    from pratique_contract.constants import RECORD_FILE

    for document in read_documents(path):
        if isinstance(document, dict) and document.get("kind") == "ConfigMap":
            found = document.get("data", {}).get(RECORD_FILE)
            if isinstance(found, str):
                return found
    raise CliError(f"{path} is neither a release record nor a ConfigMap with {RECORD_FILE}")


def build_config_map(record: "ReleaseRecord", *, name: str, immutable: bool) -> dict[str, Any]:
    """The object that ``spec.release.recordRef`` names."""
    from pratique_contract import constants

    config_map: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "annotations": {constants.ANNOTATION_FINGERPRINT: record.fingerprint}},
        "data": {constants.RECORD_FILE: record.to_json()},
    }
    return {**config_map, "immutable": True} if immutable else config_map


def stamp_documents(path: Path, record: "ReleaseRecord", *, record_ref: str | None) -> list[Any]:
    """The file's documents with the one InferenceService naming the record's release. Other documents pass unchanged."""
    documents = read_documents(path)
    services = [document for document in documents if is_service(document)]
    if len(services) != 1:
        raise CliError(f"{path} holds {len(services)} InferenceServices, not one")
    (service,) = services
    release = service.setdefault("spec", {}).setdefault("release", {}) or {}
    named = record_ref or (release.get("recordRef") or {}).get("name")
    service["spec"]["release"] = {
        **release,
        "fingerprint": record.fingerprint,
        "recordRef": {"name": named or f"{service['metadata']['name']}{RECORD_REF_SUFFIX}"},
    }
    return documents

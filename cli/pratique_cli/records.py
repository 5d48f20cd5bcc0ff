"""Read, wrap and stamp release records and manifests: everything of ``pratique release`` that needs no model."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from pratique_cli.errors import EXIT_USAGE, CliError
from pratique_cli.specs import is_service, read_documents, read_text

if TYPE_CHECKING:
    from pratique_contract.golden import GoldenRecord
    from pratique_contract.manifest import ReleaseManifest
    from pratique_contract.record import ReleaseRecord

RECORD_REF_SUFFIX: Final = "-release"


@dataclass(frozen=True, kw_only=True)
class RecordText:
    """A record with the very text it was read from (what a signature is of), the signature beside it, and its ConfigMap's name."""

    record: "ReleaseRecord"
    text: str
    signature: str | None = None
    name: str | None = None
    from_config_map: bool = False

    @classmethod
    def of(cls, record: "ReleaseRecord", *, name: str | None = None) -> Self:
        """The text in which a new record is written; raises ``CliError`` when it is too large."""
        from pratique_contract.record import RecordError

        try:
            return cls(record=record, text=f"{record.to_json()}\n", name=name)
        except RecordError as error:
            raise CliError(str(error)) from error

    def signed(self, signature: str) -> Self:
        return replace(self, signature=signature)

    def named(self, name: str | None, *, service: Path | None) -> Self:
        """With the name that ``recordRef`` has: given, the service's, or that of the ConfigMap it came from."""
        from pratique_cli.specs import read_service

        chosen = name or (None if service is None else record_ref_of(read_service(service))) or self.name
        if chosen is None:
            raise CliError("Name the ConfigMap as recordRef does: --name, or --service FILE", code=EXIT_USAGE)
        return replace(self, name=chosen)

    def config_map(self, *, immutable: bool) -> dict[str, Any]:
        """The object that ``spec.release.recordRef`` names, with the signature when there is one."""
        from pratique_contract import constants

        data = {constants.RECORD_FILE: self.text}
        if self.signature is not None:
            data[constants.RECORD_SIGNATURE_FILE] = self.signature
        annotations = {constants.ANNOTATION_FINGERPRINT: self.record.fingerprint}
        config_map: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": self.name, "annotations": annotations},
            "data": data,
        }
        return {**config_map, "immutable": True} if immutable else config_map


def map_name(service: str) -> str:
    """The ConfigMap that holds a service's record unless the service says otherwise."""
    return f"{service}{RECORD_REF_SUFFIX}"


def record_ref_of(service: Mapping[str, Any]) -> str:
    """The name of the ConfigMap that a service refers to, or would."""
    release = (service.get("spec") or {}).get("release") or {}
    named = (release.get("recordRef") or {}).get("name")
    return str(named or map_name(service["metadata"]["name"]))


def read_record(path: Path) -> "ReleaseRecord":
    """A record file, or the ConfigMap that carries one (YAML or JSON); raises ``CliError``."""
    return read_record_text(path).record


def read_record_text(path: Path) -> RecordText:
    """As ``read_record``, with the text as it stands there and the signature beside it."""
    from pratique_contract.record import RecordError, ReleaseRecord

    found = read_source(path)
    try:
        record = ReleaseRecord.from_json(found.text)
    except RecordError as error:
        raise CliError(f"{path}: {error}") from error
    return RecordText(
        record=record,
        text=found.text,
        signature=found.signature,
        name=found.name,
        from_config_map=found.name is not None,
    )


def read_manifest(path: Path) -> "ReleaseManifest":
    """A manifest file as ``release build`` writes it, or the manifest of a record."""
    return read_release(path)[0]


def read_release(path: Path) -> "tuple[ReleaseManifest, GoldenRecord | None]":
    """As ``read_manifest``, with what a record makes a pod prove; None for a manifest, which says nothing of that."""
    import json

    from pydantic import ValidationError

    from pratique_contract.canonical import JSON_ERRORS
    from pratique_contract.manifest import ReleaseManifest

    text = read_source(path).text
    try:
        value = json.loads(text)
    except JSON_ERRORS as error:
        raise CliError(f"{path} is not JSON: {error}") from error
    if isinstance(value, dict) and "manifest" in value:
        record = read_record(path)
        return record.manifest, record.golden
    if isinstance(value, dict):
        # What a pod's /manifest answers: the manifest with what is derived from it.
        value = {name: item for name, item in value.items() if name not in ("digests", "fingerprint")}
    try:
        return ReleaseManifest.from_json_value(value), None
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "manifest"
        raise CliError(f"{path} is neither a release record nor a manifest: {field}: {first['msg']}") from error


@dataclass(frozen=True, kw_only=True)
class Source:
    """What a file holds before it is understood. ``name`` is the ConfigMap's, None for a plain file."""

    text: str
    signature: str | None
    name: str | None = None


def read_source(path: Path) -> Source:
    """The record's or manifest's text in a file or in the ConfigMap that a file describes; raises ``CliError``."""
    from pratique_contract.constants import RECORD_FILE, RECORD_SIGNATURE_FILE
    from pratique_contract.signature import signature_name

    if path.is_dir():
        raise CliError(
            f"{path} is a folder; this takes the file of a record or manifest, as `pratique release record --model {path} --output FILE` "
            "(or build) writes it"
        )
    text = read_text(path)
    if text.lstrip().startswith("{") and '"ConfigMap"' not in text:
        beside = path.with_name(signature_name(path.name))
        return Source(text=text, signature=read_text(beside) if beside.is_file() else None)
    for document in read_documents(path):
        if isinstance(document, dict) and document.get("kind") == "ConfigMap":
            data = document.get("data") or {}
            found = data.get(RECORD_FILE)
            if isinstance(found, str):
                name = str((document.get("metadata") or {}).get("name") or "")
                return Source(text=found, signature=data.get(RECORD_SIGNATURE_FILE), name=name)
    raise CliError(f"{path} is neither a release record nor a ConfigMap with {RECORD_FILE}")


def stamp_documents(path: Path, record: "ReleaseRecord", *, record_ref: str | None) -> list[Any]:
    """The file's documents with the one InferenceService naming the record's release. Other documents pass unchanged."""
    documents = read_documents(path)
    services = [document for document in documents if is_service(document)]
    if len(services) != 1:
        raise CliError(f"{path} holds {len(services)} InferenceServices, not one")
    (service,) = services
    release = service.setdefault("spec", {}).setdefault("release", {}) or {}
    service["spec"]["release"] = {
        **release,
        "fingerprint": record.fingerprint,
        "recordRef": {"name": record_ref or record_ref_of(service)},
    }
    return documents

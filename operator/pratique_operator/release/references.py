"""The ConfigMaps and Secrets a spec refers to. Their content can change a pod, so it is part of the revision; the public key of the
record's signature only decides whether it may start.

``required_references`` says what to read; ``observe`` reads it; ``References`` answers for it. The API keys' Secret is not here: the server
reloads keys without a restart, so another key is not another revision.
"""

import base64
import binascii
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pratique_contract import constants
from pratique_contract.canonical import digest_bytes, digest_json
from pratique_contract.record import RecordError as ContractRecordError
from pratique_contract.record import ReleaseRecord
from pratique_operator.api.types import InferenceServiceSpec
from pratique_operator.api.volume_types import KeyToPath
from pratique_operator.errors import InvalidSpecError, RecordError

RECORD_FIELD: Final = "spec.release.recordRef"
_PARTS: Final = ("data", "binaryData")


@dataclass(frozen=True, order=True)
class Reference:
    """One object of the service's namespace: ``kind`` is ConfigMap or Secret."""

    kind: str
    name: str


@dataclass(frozen=True)
class References:
    """What was found: object data by reference, None for an object that does not exist."""

    objects: Mapping[Reference, Mapping[str, Any] | None] = field(default_factory=dict)

    def text(self, reference: Reference, key: str, *, where: str) -> str:
        """The text under ``key``; raises ``InvalidSpecError`` naming ``where`` when it is not there."""
        found = self.objects.get(reference)
        if found is None:
            raise InvalidSpecError(where, f"there is no {reference.kind} {reference.name} in this namespace")
        if reference.kind == "ConfigMap" and key in found.get("data", {}):
            return str(found["data"][key])
        raw = found.get("binaryData" if reference.kind == "ConfigMap" else "data", {}).get(key)
        if raw is None:
            raise InvalidSpecError(where, f"{reference.kind} {reference.name} has no key {key}")
        try:
            return base64.b64decode(raw, validate=True).decode()
        except (binascii.Error, UnicodeDecodeError) as error:
            raise InvalidSpecError(where, f"{reference.kind} {reference.name} key {key} is not text") from error

    def content(self, reference: Reference, keys: Collection[str] | None, *, where: str) -> dict[str, str]:
        """Each key as the API server keeps it, all of them with ``keys`` None; raises ``InvalidSpecError`` when one is not there."""
        found = self.objects.get(reference)
        if found is None:
            raise InvalidSpecError(where, f"there is no {reference.kind} {reference.name} in this namespace")
        kept = {f"{part}/{key}": str(text) for part in _PARTS for key, text in (found.get(part) or {}).items()}
        if keys is None:
            return kept
        missing = sorted(key for key in keys if not any(f"{part}/{key}" in kept for part in _PARTS))
        if missing:
            raise InvalidSpecError(where, f"{reference.kind} {reference.name} has no key {missing[0]}")
        return {place: text for place, text in kept.items() if place.partition("/")[2] in keys}

    def has(self, reference: Reference, key: str) -> bool:
        """Whether the object is there and has the key."""
        found = self.objects.get(reference) or {}
        return any(key in (found.get(part) or {}) for part in _PARTS)


def required_references(spec: InferenceServiceSpec) -> frozenset[Reference]:
    """Every object whose content can change a pod, or whether it may start."""
    found: set[Reference] = set()
    key = signature_key(spec)
    if key is not None:
        found.add(key[0])
    if spec.release.record_ref is not None:
        found.add(Reference("ConfigMap", spec.release.record_ref.name))
    found.update(reference for reference, _, _ in _key_references(spec))
    found.update(reference for reference, _, _ in _volume_references(spec))
    return frozenset(found)


def signature_key(spec: InferenceServiceSpec) -> tuple[Reference, str, str] | None:
    """(object, key, where in the spec) of the public key. Not in the revision: another key changes no pod."""
    signature = spec.release.signature
    if signature is None:
        return None
    if signature.config_map_key_ref is not None:
        ref = signature.config_map_key_ref
        return Reference("ConfigMap", ref.name), ref.key, "spec.release.signature.configMapKeyRef"
    if signature.secret_key_ref is not None:
        ref = signature.secret_key_ref
        return Reference("Secret", ref.name), ref.key, "spec.release.signature.secretKeyRef"
    return None


def _key_references(spec: InferenceServiceSpec) -> list[tuple[Reference, str, str]]:
    """(object, key, where in the spec) of each single key."""
    found: list[tuple[Reference, str, str]] = []
    template = spec.chat_template
    if template is not None and template.config_map_key_ref is not None:
        ref = template.config_map_key_ref
        found.append((Reference("ConfigMap", ref.name), ref.key, "spec.chatTemplate.configMapKeyRef"))
    if template is not None and template.secret_key_ref is not None:
        ref = template.secret_key_ref
        found.append((Reference("Secret", ref.name), ref.key, "spec.chatTemplate.secretKeyRef"))
    options = spec.template.spec if spec.template is not None else None
    for variable in (options.env if options is not None else None) or ():
        source = variable.value_from
        if source is not None and source.config_map_key_ref is not None:
            ref = source.config_map_key_ref
            found.append((Reference("ConfigMap", ref.name), ref.key, f"spec.template.spec.env[{variable.name}]"))
        if source is not None and source.secret_key_ref is not None:
            ref = source.secret_key_ref
            found.append((Reference("Secret", ref.name), ref.key, f"spec.template.spec.env[{variable.name}]"))
    return found


def _volume_references(spec: InferenceServiceSpec) -> list[tuple[Reference, frozenset[str] | None, str]]:
    """(object, keys, where in the spec) of each mounted volume; keys None: all."""
    found: list[tuple[Reference, frozenset[str] | None, str]] = []
    options = spec.template.spec if spec.template is not None else None
    for volume in (options.volumes if options is not None else None) or ():
        where = f"spec.template.spec.volumes[{volume.name}]"
        if volume.config_map is not None:
            found.append((Reference("ConfigMap", volume.config_map.name), _keys(volume.config_map.items), where))
        if volume.secret is not None:
            found.append((Reference("Secret", volume.secret.secret_name), _keys(volume.secret.items), where))
    return found


def _keys(items: tuple[KeyToPath, ...] | None) -> frozenset[str] | None:
    return None if items is None else frozenset(item.key for item in items)


def digest_references(spec: InferenceServiceSpec, references: References) -> str:
    """One digest over the content of every referenced key; raises ``InvalidSpecError`` when one is missing."""
    single = {
        f"{where}/{reference.kind}/{reference.name}/{key}": digest_bytes(
            references.text(reference, key, where=where).encode()
        )
        for reference, key, where in _key_references(spec)
    }
    whole = {
        f"{where}/{reference.kind}/{reference.name}": digest_json(references.content(reference, keys, where=where))
        for reference, keys, where in _volume_references(spec)
    }
    return digest_json({**single, **whole})


def inline_chat_template(spec: InferenceServiceSpec, references: References) -> str | None:
    """The template's text when it may stand in a ConfigMap: given inline or kept in one already."""
    template = spec.chat_template
    if template is None or template.secret_key_ref is not None:
        return None
    if template.config_map_key_ref is not None:
        ref = template.config_map_key_ref
        return references.text(Reference("ConfigMap", ref.name), ref.key, where="spec.chatTemplate.configMapKeyRef")
    return template.inline


def chat_template_text(spec: InferenceServiceSpec, references: References) -> str | None:
    """The template's text wherever it is kept, a Secret too: to be digested, never copied. None: the tokenizer's own."""
    template = spec.chat_template
    if template is not None and template.secret_key_ref is not None:
        ref = template.secret_key_ref
        return references.text(Reference("Secret", ref.name), ref.key, where="spec.chatTemplate.secretKeyRef")
    return inline_chat_template(spec, references)


def read_record(spec: InferenceServiceSpec, references: References) -> ReleaseRecord | None:
    """The approved record, or None when none is named. Raises ``RecordError`` saying what is wrong with it."""
    if spec.release.record_ref is None:
        return None
    name = spec.release.record_ref.name
    approved = spec.release.fingerprint
    if approved is None:
        # The CRD refuses it; this one was stored under an older CRD.
        where = "spec.release.fingerprint"
        raise InvalidSpecError(
            where, "recordRef needs it: whatever record the ConfigMap holds would be the approved one"
        )
    try:
        text = references.text(Reference("ConfigMap", name), constants.RECORD_FILE, where=RECORD_FIELD)
        record = ReleaseRecord.from_json(text)
    except InvalidSpecError as error:
        raise RecordError(str(error)) from error
    except ContractRecordError as error:
        raise RecordError(f"{RECORD_FIELD}: ConfigMap {name}: {error}") from error
    if record.fingerprint != approved:
        raise RecordError(
            f"{RECORD_FIELD}: ConfigMap {name} holds the record of {record.fingerprint}, "
            f"but spec.release.fingerprint approves {approved}"
        )
    return record

"""The revision: a hash of everything that can change a pod: the pod template with its image, the serving document, the record,
the content of referenced ConfigMaps and Secrets. Two specs with one revision run the same pods; ``replicas``, ``rollout`` and the
content of the API keys' Secret are not in it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pratique_contract import ServingSpec, constants
from pratique_contract.canonical import digest_bytes, digest_json, short_digest
from pratique_contract.record import ReleaseRecord
from pratique_operator import names
from pratique_operator.api.types import InferenceServiceSpec
from pratique_operator.config import OperatorConfig
from pratique_operator.desired.pod import build_pod_template, image_of, name_revision
from pratique_operator.desired.serving import build_serving
from pratique_operator.desired.sources import pinned_revision
from pratique_operator.errors import InvalidSpecError, OtherRecordedError
from pratique_operator.release.declaration import digest_declaration
from pratique_operator.release.references import References, digest_references, inline_chat_template, read_record
from pratique_operator.release.signatures import check_signature
from pratique_operator.release.trust import Recorded, trusts_first

# The API server refuses ConfigMaps over 1 MiB; leave room for metadata.
CONFIG_BYTES_MAX = 1_000_000


@dataclass(frozen=True)
class Target:
    """The revision the spec asks for, with all that its children are built from. ``declared`` is set under TrustFirst only.
    ``record`` is what its pods must match, None when nothing is recorded yet; ``record_ref`` the ConfigMap it is, or will be, in."""

    revision: str
    template: dict[str, Any]
    config_data: dict[str, str]
    fingerprint: str | None
    model_revision: str | None
    declared: str | None = None
    record: ReleaseRecord | None = None
    record_ref: str | None = None

    @property
    def annotations(self) -> dict[str, str]:
        """What the Deployment and its pods say about the release."""
        said = {
            constants.ANNOTATION_FINGERPRINT: self.fingerprint,
            constants.ANNOTATION_MODEL_REVISION: self.model_revision,
        }
        return {name: value for name, value in said.items() if value is not None}


def compute_target(
    spec: InferenceServiceSpec,
    references: References,
    *,
    service: str,
    namespace: str,
    config: OperatorConfig,
    recorded: Mapping[str, Recorded] | None = None,
) -> Target:
    """Build the target; raises ``InvalidSpecError`` or ``RecordError`` when the spec cannot be served. ``recorded`` is what was
    recorded under TrustFirst, by declaration."""
    image = image_of(spec, config)
    if not image:
        raise InvalidSpecError("spec.engine.image", "no image is given, and the operator has no default (serverImage)")
    template = build_pod_template(spec, service=service, config=config)
    content = digest_references(spec, references)
    check_signature(spec, references, config)
    record = read_record(spec, references)
    trust = None
    if trusts_first(spec):
        declared = digest_declaration(spec, references, image=image)
        trust = _Trusted(declared, names.recorded(service, declared), (recorded or {}).get(declared))
        spec = _hand_fingerprint(spec, trust)
        template = mount_recorded(template, trust.config_map)
    serving = build_serving(
        spec,
        service=service,
        namespace=namespace,
        image=image,
        chat_template=inline_chat_template(spec, references),
        record=record,
    )
    # A review is for the operator: added to a record that is in use, it restarts no pod.
    record_text = "" if record is None else record.model_copy(update={"review": None}).to_json()
    # Of a mounted source the spec's is a note that nothing checks: in the status it would read as what is served.
    checked = pinned_revision(spec.model.uri, spec.model.revision)
    unnamed = Target("", template, {}, serving.release.fingerprint, checked)
    if trust is None:
        unnamed = replace(
            unnamed, record=record, record_ref=spec.release.record_ref.name if spec.release.record_ref else None
        )
    else:
        kept = trust.recorded.record if trust.recorded is not None else None
        unnamed = replace(unnamed, declared=trust.declared, record=kept, record_ref=trust.config_map)
    identity = {
        "template": name_revision(template, service=service, revision="", annotations=unnamed.annotations),
        "serving": _serving_text(serving, revision=""),
        "record": digest_bytes(record_text.encode()),
        "references": content,
    }
    revision = short_digest(digest_json(identity), length=names.REVISION_DIGITS)
    data = {constants.SERVING_FILE: _serving_text(serving, revision=revision)}
    if record is not None:
        data[constants.RECORD_FILE] = record_text
    size = sum(len(text.encode()) for text in data.values())
    if size > CONFIG_BYTES_MAX:
        raise InvalidSpecError(
            "spec.release.recordRef" if record_text else "spec.chatTemplate",
            f"the pod's configuration has {size} bytes; a ConfigMap holds at most {CONFIG_BYTES_MAX}",
        )
    return replace(unnamed, revision=revision, config_data=data)


@dataclass(frozen=True)
class _Trusted:
    declared: str
    config_map: str
    recorded: Recorded | None


def _hand_fingerprint(spec: InferenceServiceSpec, trust: _Trusted) -> InferenceServiceSpec:
    """The spec as its pods are handed it. Once something is recorded, the ConfigMap says what pods must match, and approving that
    fingerprint later must restart none of them: they keep the one they started with."""
    if trust.recorded is None:
        return spec
    approved = spec.release.fingerprint
    if approved not in (None, trust.recorded.fingerprint):
        raise OtherRecordedError(
            f"spec.release.fingerprint approves {approved}, but {trust.recorded.fingerprint} was recorded for what is declared "
            f"(ConfigMap {trust.config_map}): approve that one, or declare what was approved",
            config_map=trust.config_map,
            fingerprint=trust.recorded.fingerprint,
        )
    release = spec.release.model_copy(update={"fingerprint": trust.recorded.pinned})
    return spec.model_copy(update={"release": release})


def mount_recorded(template: dict[str, Any], config_map: str) -> dict[str, Any]:
    """The pod template with the ConfigMap the first pod's record will be in, for the server and for what fetches before it. Optional:
    until then it is not there."""
    volume = {"name": names.VOLUME_RECORDED, "configMap": {"name": config_map, "optional": True}}
    mount = {"name": names.VOLUME_RECORDED, "mountPath": constants.RECORDED_DIR, "readOnly": True}
    pod = template["spec"]
    readers = {
        kind: [{**container, "volumeMounts": [*container["volumeMounts"], mount]} for container in pod[kind]]
        for kind in ("initContainers", "containers")
        if kind in pod
    }
    return {**template, "spec": {**pod, **readers, "volumes": [*pod["volumes"], volume]}}


def _serving_text(serving: ServingSpec, *, revision: str) -> str:
    """The exact text of the file: part of the identity, because a ConfigMap of a revision can never change."""
    return json.dumps({**serving.to_json_value(), "revision": revision}, indent=1, ensure_ascii=False)

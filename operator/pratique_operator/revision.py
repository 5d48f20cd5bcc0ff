"""The revision: a hash of everything that can change a pod: the pod template with its image, the serving document, the record,
the content of referenced ConfigMaps and Secrets. Two specs with one revision run the same pods; ``replicas``, ``rollout`` and the
content of the API keys' Secret are not in it.
"""

import json
from dataclasses import dataclass, replace
from typing import Any

from pratique_contract import ServingSpec, constants
from pratique_contract.canonical import digest_bytes, digest_json, short_digest
from pratique_operator import names
from pratique_operator.config import OperatorConfig
from pratique_operator.desired.pod import build_pod_template, image_of, name_revision
from pratique_operator.desired.serving import build_serving
from pratique_operator.errors import InvalidSpecError
from pratique_operator.references import References, digest_references, inline_chat_template, read_record
from pratique_operator.types import InferenceServiceSpec

# The API server refuses ConfigMaps over 1 MiB; leave room for metadata.
CONFIG_BYTES_MAX = 1_000_000


@dataclass(frozen=True)
class Target:
    """The revision the spec asks for, with all that its children are built from."""

    revision: str
    template: dict[str, Any]
    config_data: dict[str, str]
    fingerprint: str | None
    model_revision: str | None

    @property
    def annotations(self) -> dict[str, str]:
        """What the Deployment and its pods say about the release."""
        said = {
            constants.ANNOTATION_FINGERPRINT: self.fingerprint,
            constants.ANNOTATION_MODEL_REVISION: self.model_revision,
        }
        return {name: value for name, value in said.items() if value is not None}


def compute_target(
    spec: InferenceServiceSpec, references: References, *, service: str, namespace: str, config: OperatorConfig
) -> Target:
    """Build the target; raises ``InvalidSpecError`` or ``RecordError`` when the spec cannot be served."""
    image = image_of(spec, config)
    if not image:
        raise InvalidSpecError("spec.engine.image", "no image is given, and the operator has no default (serverImage)")
    template = build_pod_template(spec, service=service, config=config)
    content = digest_references(spec, references)
    record = read_record(spec, references)
    serving = build_serving(
        spec,
        service=service,
        namespace=namespace,
        image=image,
        chat_template=inline_chat_template(spec, references),
        record=record,
    )
    record_text = "" if record is None else record.to_json()
    unnamed = Target("", template, {}, serving.release.fingerprint, spec.model.revision)
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


def _serving_text(serving: ServingSpec, *, revision: str) -> str:
    """The exact text of the file: part of the identity, because a ConfigMap of a revision can never change."""
    return json.dumps({**serving.to_json_value(), "revision": revision}, indent=1, ensure_ascii=False)

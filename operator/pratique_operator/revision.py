"""The revision: a hash of everything that can change a pod: the pod template with its image, the serving document, the record,
the content of referenced ConfigMaps and Secrets. Two specs with one revision run the same pods; ``replicas``, ``rollout`` and the
content of the API keys' Secret are not in it.
"""

import json
from dataclasses import dataclass
from typing import Any

from pratique_contract import constants
from pratique_contract.canonical import digest_bytes, digest_json, short_digest
from pratique_operator import names
from pratique_operator.config import OperatorConfig
from pratique_operator.desired.pod import build_pod_template, image_of
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
    document = serving.to_json_value()
    digest = digest_json(
        {"template": template, "serving": document, "record": digest_bytes(record_text.encode()), "references": content}
    )
    revision = short_digest(digest, length=names.REVISION_DIGITS)
    data = {constants.SERVING_FILE: json.dumps({**document, "revision": revision}, indent=1, ensure_ascii=False)}
    if record is not None:
        data[constants.RECORD_FILE] = record_text
    size = sum(len(text.encode()) for text in data.values())
    if size > CONFIG_BYTES_MAX:
        raise InvalidSpecError(
            "spec.release.recordRef" if record_text else "spec.chatTemplate",
            f"the pod's configuration has {size} bytes; a ConfigMap holds at most {CONFIG_BYTES_MAX}",
        )
    return Target(
        revision=revision,
        template=template,
        config_data=data,
        fingerprint=serving.release.fingerprint,
        model_revision=spec.model.revision,
    )

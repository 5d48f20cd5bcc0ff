"""TrustFirst: what is recorded, what a pod offers to be recorded, and whether to take it. Pure.

A service with ``policy: TrustFirst`` and no ``recordRef`` trusts the first pod that agrees with itself: its release record is kept in a
ConfigMap named after the *declared* release, immutable, created once and never written again. Two operators, or one that was killed,
can only create the same name: the second one reads what the first one kept. Every later pod gets that ConfigMap and must match it.

That something *was* recorded is remembered on the Deployments too. A ConfigMap that is gone is then not "nothing recorded yet": the
same release is kept again from a running pod, another one is refused.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pratique_contract import Reason, constants
from pratique_contract.canonical import JSON_ERRORS, short_digest
from pratique_contract.record import RecordError, ReleaseRecord
from pratique_operator import kinds, names
from pratique_operator.api.types import InferenceServiceSpec
from pratique_operator.pods.containers import Finding
from pratique_operator.pods.facts import PodFacts

Manifest = dict[str, Any]
Children = Mapping[tuple[str, str], Manifest]

HTTP_OK: Final = 200
HTTP_ACCEPTED: Final = 202
HTTP_CONFLICT: Final = 409
HTTP_UNKNOWN: Final = (404, 405)
MESSAGE_CHARS_MAX: Final = 400
_REMEDY: Final = "delete it, and the same release is kept again from a running pod"


@dataclass(frozen=True)
class Recorded:
    """The record of one declared release. ``record`` None: its ConfigMap is not there or not usable (``problem``), and only the
    fingerprint is remembered. ``pinned`` is the fingerprint its pods were handed, which approving it later must not change."""

    declared: str
    config_map: str
    fingerprint: str
    pinned: str | None
    record: ReleaseRecord | None
    problem: str = ""


@dataclass(frozen=True)
class RecordAnswer:
    """What a pod answered when it was asked for its record. ``status`` None: nothing."""

    status: int | None
    body: str = ""


@dataclass(frozen=True)
class Offer:
    """One verified pod's answer for a declaration without a kept record: ``record`` to keep, or ``waits`` or ``problem`` saying why not."""

    revision: str
    declared: str
    pod: str
    pinned: str | None = None
    record: ReleaseRecord | None = None
    waits: str | None = None
    problem: Finding | None = None


@dataclass(frozen=True)
class Trust:
    """Everything recorded of a service, by declaration, and what its pods offer."""

    recorded: Mapping[str, Recorded] = field(default_factory=dict)
    offers: tuple[Offer, ...] = ()

    def kept(self, declared: str | None) -> Recorded | None:
        """The record that pods of this declaration must match, if it is there."""
        found = None if declared is None else self.recorded.get(declared)
        return found if found is not None and found.record is not None else None

    def offer_of(self, revision: str | None) -> Offer | None:
        return next((offer for offer in self.offers if offer.revision == revision), None)


def trusts_first(spec: InferenceServiceSpec) -> bool:
    """Whether the first pod decides. A named record decides otherwise, whatever the policy."""
    return spec.release.policy == "TrustFirst" and spec.release.record_ref is None


def declared_of(deployment: Manifest) -> str | None:
    """The declared release of a revision under TrustFirst; None for any other."""
    value = deployment["metadata"].get("annotations", {}).get(names.ANNOTATION_DECLARED)
    return None if value is None else str(value)


def observe_recorded(children: Children) -> dict[str, Recorded]:
    """What is kept in ConfigMaps and what Deployments remember, by declaration."""
    found: dict[str, Recorded] = {}
    for memory in _remembered(children):
        # Of several revisions one that was handed a fingerprint decides: it asks for more.
        if memory.declared not in found or memory.pinned is not None:
            found[memory.declared] = memory
    for (kind, _), child in sorted(children.items()):
        declared = declared_of(child)
        if kind == kinds.CONFIG_MAP.kind and declared is not None and _is_mounted(child, declared):
            found[declared] = _read(child, declared, found.get(declared))
    return found


def pin_lost(recorded: Mapping[str, Recorded], *, alive: frozenset[str]) -> dict[str, Recorded]:
    """Hand the remembered fingerprint to the next pods of a declaration whose record is lost and of which no pod is left (``alive``)
    that could give it again. It makes another revision, which nothing else than the recorded release can take into service."""
    return {
        declared: replace(found, pinned=found.fingerprint or found.pinned)
        if found.record is None and declared not in alive
        else found
        for declared, found in recorded.items()
    }


def _is_mounted(config_map: Manifest, declared: str) -> bool:
    """Whether it has the one name that pods look for: what they cannot see is not kept."""
    metadata = config_map["metadata"]
    return bool(metadata["name"] == names.recorded(metadata["labels"][constants.LABEL_SERVICE], declared))


def _remembered(children: Children) -> Iterable[Recorded]:
    for (kind, _), child in sorted(children.items(), reverse=True):
        annotations = child["metadata"].get("annotations", {})
        declared, fingerprint = declared_of(child), annotations.get(names.ANNOTATION_RECORDED)
        if kind == kinds.DEPLOYMENT.kind and declared is not None and fingerprint is not None:
            name = names.recorded(child["metadata"]["labels"][constants.LABEL_SERVICE], declared)
            pinned = annotations.get(constants.ANNOTATION_FINGERPRINT)
            why = f"ConfigMap {name} with the recorded release {short_digest(fingerprint)} is gone"
            yield Recorded(declared, name, fingerprint, pinned, None, why)


def _read(config_map: Manifest, declared: str, memory: Recorded | None) -> Recorded:
    metadata = config_map["metadata"]
    name, annotations = metadata["name"], metadata.get("annotations", {})
    pinned = annotations.get(names.ANNOTATION_PINNED)
    said = memory.fingerprint if memory is not None else str(annotations.get(constants.ANNOTATION_FINGERPRINT, ""))
    try:
        record = ReleaseRecord.from_json(config_map.get("data", {}).get(constants.RECORD_FILE, ""))
    except RecordError as error:
        return Recorded(declared, name, said, pinned, None, f"ConfigMap {name} cannot be used: {error}; {_REMEDY}")
    if said and record.fingerprint != said:
        why = f"ConfigMap {name} holds release {short_digest(record.fingerprint)}, but {short_digest(said)} was recorded; {_REMEDY}"
        return Recorded(declared, name, said, pinned, None, why)
    return Recorded(declared, name, record.fingerprint, pinned, record)


def unrecorded(deployments: Mapping[str, Manifest], recorded: Mapping[str, Recorded]) -> dict[str, str]:
    """Revisions that exist under TrustFirst and have no kept record, with their declaration."""
    found = {revision: declared_of(deployment) for revision, deployment in deployments.items()}
    return {
        revision: declared
        for revision, declared in found.items()
        if declared is not None and (declared not in recorded or recorded[declared].record is None)
    }


def choose_witness(pods: Iterable[PodFacts]) -> PodFacts | None:
    """The pod to record: one that has passed and not begun to answer otherwise, ready ones first, by name. None: none yet."""
    able = [pod for pod in pods if pod.verdict is not None and pod.verified and not pod.terminating]
    return min(able, key=lambda pod: (not pod.ready, pod.name)) if able else None


def judge_answer(
    answer: RecordAnswer, *, revision: str, declared: str, pod: PodFacts, pinned: str | None, memory: Recorded | None
) -> Offer:
    """Whether what the pod answered may be kept."""
    told = Offer(revision, declared, pod.name, pinned if memory is None else memory.pinned)
    if answer.status is None:
        return _waits(told, "it does not answer")
    if answer.status == HTTP_ACCEPTED:
        return _waits(told, _sentence(answer.body) or "its record is being made")
    if answer.status == HTTP_CONFLICT:
        return _refused(told, f"has no record to keep: {_sentence(answer.body)}")
    if answer.status in HTTP_UNKNOWN:
        return _refused(told, "does not offer its record: its image holds an older server than this operator needs")
    if answer.status != HTTP_OK:
        return _waits(told, f"it answered {answer.status}: {_sentence(answer.body)}")
    try:
        record = ReleaseRecord.from_json(answer.body)
    except RecordError as error:
        return _refused(told, f"offers a record that cannot be kept: {error}")
    proved = pod.verdict.fingerprint if pod.verdict is not None else None
    if record.fingerprint != proved:
        return _refused(
            told, f"offers the record of {record.fingerprint}, but its verdict is about {proved}; nothing was recorded"
        )
    if memory is not None and record.fingerprint != memory.fingerprint:
        return _refused(
            told,
            f"loaded {record.fingerprint}, but {memory.fingerprint} was recorded for what is declared, and its ConfigMap is gone; "
            "put the recorded files back and delete the pod, or declare another source",
        )
    if gaps := record.find_gaps():
        # Kept, it would refuse every later pod, for good.
        return _refused(told, f"offers a record that proves too little: {'; '.join(gaps)}")
    # Whether a release was reviewed is not for its own pod to say.
    return replace(told, record=record.model_copy(update={"review": None}))


def _waits(offer: Offer, why: str) -> Offer:
    return replace(offer, waits=f"pod {offer.pod} passed and is to be recorded: {why}")


def _refused(offer: Offer, why: str) -> Offer:
    return replace(offer, problem=Finding(Reason.RECORD_MISSING, f"pod {offer.pod} {why}"))


def _sentence(body: str) -> str:
    """The sentence of ``{"message": …}``, or the text itself."""
    try:
        value = json.loads(body)
    except JSON_ERRORS:
        value = None
    message = str(value.get("message", "")) if isinstance(value, dict) else body
    readable = "".join(char if char.isprintable() else " " for char in message[:MESSAGE_CHARS_MAX])
    return " ".join(readable.split())


def is_stranger(pod: PodFacts, recorded: Recorded | None) -> bool:
    """Whether it passed as something else than what is recorded for its declaration."""
    verdict = pod.verdict
    if recorded is None or verdict is None or pod.terminating or not verdict.passed:
        return False
    return verdict.fingerprint not in (None, recorded.fingerprint)


def find_stranger(pods: Iterable[PodFacts], recorded: Recorded | None) -> Finding | None:
    """A pod that trusted itself although something else was recorded: it started before its node knew the ConfigMap, or while the
    ConfigMap was gone."""
    for pod in pods:
        if recorded is None or pod.verdict is None or not is_stranger(pod, recorded):
            continue
        sentence = (
            f"pod {pod.name} serves release {short_digest(str(pod.verdict.fingerprint))}, but {short_digest(recorded.fingerprint)} is "
            f"recorded (ConfigMap {recorded.config_map}); delete the pod: the next one is held against the record"
        )
        return Finding(Reason.RECORD_MISSING, sentence)
    return None


def stale_config_maps(
    children: Children, *, revisions: Iterable[str], wanted: str | None, named: str | None
) -> list[Manifest]:
    """Recorded ConfigMaps that neither the wanted declaration, nor any revision that stays, nor the spec by name refers to."""
    stay = frozenset(revisions)
    used = {wanted} | {
        declared_of(child)
        for (kind, _), child in children.items()
        if kind == kinds.DEPLOYMENT.kind and child["metadata"].get("labels", {}).get(constants.LABEL_REVISION) in stay
    }
    return [
        child
        for (kind, name), child in sorted(children.items())
        if kind == kinds.CONFIG_MAP.kind and declared_of(child) not in {None, *used} and name != named
    ]

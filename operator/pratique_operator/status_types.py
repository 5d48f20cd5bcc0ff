"""The ``InferenceService`` status, written by ``status.py`` alone. What *is serving* comes before what is wanted."""

from typing import Annotated, Literal

from pydantic import Field

from pratique_contract.model import ContractModel

CONDITIONS_MAX = 16
VERDICTS_MAX = 10
DOWNLOADS_MAX = 10
PARTS_MAX = 8
UNCOVERED_MAX = 32

ConditionStatus = Literal["True", "False", "Unknown"]


class Condition(ContractModel):
    """One observation. ``reason`` is API: stable and CamelCase."""

    type: Annotated[str, Field(max_length=316)]
    status: ConditionStatus
    observed_generation: int | None = None
    last_transition_time: Annotated[str, Field(json_schema_extra={"format": "date-time"})]
    reason: Annotated[str, Field(max_length=128)]
    message: Annotated[str, Field(max_length=2048)]


class RevisionStatus(ContractModel):
    """One revision as it is observed. ``weight`` is its share of traffic in percent."""

    revision: str
    fingerprint: str | None = None
    model_revision: str | None = None
    weight: int
    replicas: int
    ready_replicas: int
    verified_replicas: int
    approved: bool = Field(
        default=False, description="Whether a person named this release in spec.release.fingerprint."
    )


class RolloutStatus(ContractModel):
    """Where the rollout is, and the one fact that cannot be derived: since when its target is the target."""

    phase: Literal["Pending", "Progressing", "Paused", "Complete", "Failed"]
    target: str | None = None
    started_at: Annotated[str | None, Field(json_schema_extra={"format": "date-time"})] = None
    message: str = ""


class RecordedStatus(ContractModel):
    """TrustFirst: the release the first pod was recorded as, for what the spec declares now."""

    record_ref: str = Field(description="ConfigMap with the record under record.json.")
    fingerprint: str
    approved: bool = Field(description="Whether spec.release.fingerprint names it.")


class DifferenceStatus(ContractModel):
    """A part that differs."""

    part: str
    message: str


class UncoveredStatus(ContractModel):
    """A difference that nobody explained or no passed test covers."""

    part: str
    message: str


class ReviewStatus(ContractModel):
    """The review of the current revision's release against the one it replaces."""

    reference: str = Field(description="Fingerprint of the release it replaces.")
    record_ref: str | None = Field(default=None, description="ConfigMap with the record that holds the review.")
    differences: tuple[DifferenceStatus, ...] = Field(default=(), max_length=PARTS_MAX)
    uncovered: tuple[UncoveredStatus, ...] = Field(default=(), max_length=UNCOVERED_MAX)


class PodVerdict(ContractModel):
    """Why one pod is not verified."""

    pod: str
    revision: str
    result: Literal["Pending", "Fail", "Unknown"]
    reason: str
    message: str
    at: str | None = None


class PodDownload(ContractModel):
    """How far one pod is with fetching, in its own words, and when those last changed."""

    pod: str
    revision: str
    message: str
    progressed_at: Annotated[str, Field(json_schema_extra={"format": "date-time"})]


class InferenceServiceStatus(ContractModel):
    """What the operator observed in its last pass."""

    observed_generation: int | None = None
    url: str | None = None
    replicas: int = 0
    ready_replicas: int = 0
    selector: str = ""
    serving: RevisionStatus | None = None
    candidate: RevisionStatus | None = None
    rollout: RolloutStatus | None = None
    recorded: RecordedStatus | None = None
    review: ReviewStatus | None = None
    verdicts: tuple[PodVerdict, ...] = Field(default=(), max_length=VERDICTS_MAX)
    downloads: tuple[PodDownload, ...] = Field(default=(), max_length=DOWNLOADS_MAX)
    conditions: tuple[Condition, ...] = Field(
        default=(),
        max_length=CONDITIONS_MAX,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )

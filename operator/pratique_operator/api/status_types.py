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
    """One observation."""

    type: Annotated[str, Field(max_length=316, description="What is observed: Ready, Available, Degraded, …")]
    status: Annotated[ConditionStatus, Field(description="Unknown: cannot be told yet.")]
    observed_generation: int | None = Field(default=None, description="metadata.generation it was observed for.")
    last_transition_time: Annotated[
        str, Field(json_schema_extra={"format": "date-time"}, description="When status last changed.")
    ]
    reason: Annotated[str, Field(max_length=128, description="Why, as one stable word for programs.")]
    message: Annotated[str, Field(max_length=2048, description="Why, as a sentence for people.")]


class RevisionStatus(ContractModel):
    """One revision as it is observed."""

    revision: str = Field(description="Its name: a hash of all that can change its pods.")
    fingerprint: str | None = Field(default=None, description="The release its pods have to be.")
    model_revision: str | None = Field(
        default=None,
        description="The commit or digest against which the fetch held the model's files. Where the source has none (mounted, or a prefix "
        "without spec.model.revision): the digest over the files in the release record, which the pods have to prove.",
    )
    weight: int = Field(description="Its share of traffic in percent.")
    replicas: int = Field(description="Its pods.")
    ready_replicas: int = Field(description="Pods that are ready.")
    verified_replicas: int = Field(description="Pods whose verdict passed.")
    approved: bool = Field(
        default=False, description="Whether a person named this release in spec.release.fingerprint."
    )


class RolloutStatus(ContractModel):
    """Where the rollout of the current spec is."""

    phase: Literal["Pending", "Progressing", "Paused", "Complete", "Failed"] = Field(
        description="Failed: not complete within the deadline; the conditions say why."
    )
    target: str | None = Field(default=None, description="The revision the spec asks for.")
    started_at: Annotated[
        str | None, Field(json_schema_extra={"format": "date-time"}, description="Since when it is the target.")
    ] = None
    message: str = Field(default="", description="What is being waited for, or went wrong.")


class RecordedStatus(ContractModel):
    """TrustFirst: the release the first pod was recorded as, for what the spec declares now."""

    record_ref: str = Field(description="ConfigMap with the record under record.json.")
    fingerprint: str = Field(description="Fingerprint of that release.")
    approved: bool = Field(description="Whether spec.release.fingerprint names it.")


class DifferenceStatus(ContractModel):
    """A part that differs."""

    part: str = Field(description="Part of the manifest: model, tokenizer, …")
    message: str = Field(description="The first difference, as a sentence.")


class UncoveredStatus(ContractModel):
    """A difference that nobody explained or no passed test covers."""

    part: str = Field(description="Part of the manifest: model, tokenizer, …")
    message: str = Field(description="What is missing, as a sentence.")


class ReviewStatus(ContractModel):
    """The review of the current revision's release against the one it replaces."""

    reference: str = Field(description="Fingerprint of the release it replaces.")
    record_ref: str | None = Field(default=None, description="ConfigMap with the record that holds the review.")
    differences: tuple[DifferenceStatus, ...] = Field(
        default=(), max_length=PARTS_MAX, description="Parts that differ."
    )
    uncovered: tuple[UncoveredStatus, ...] = Field(
        default=(), max_length=UNCOVERED_MAX, description="What of it no reason or no passed test covers."
    )


class PodVerdict(ContractModel):
    """Why one pod is not verified."""

    pod: str = Field(description="The pod's name.")
    revision: str = Field(description="Its revision.")
    result: Literal["Pending", "Fail", "Unknown"] = Field(
        description="Fail: the gate refused it. Unknown: it did not get as far; the reason says why."
    )
    reason: str = Field(description="Why, as one stable word: ModelMismatch, Downloading, …")
    message: str = Field(description="Why, as a sentence: the part, what was recorded, what is loaded.")
    at: str | None = Field(default=None, description="When the pod reached it.")


class PodDownload(ContractModel):
    """How far one pod is with fetching."""

    pod: str = Field(description="The pod's name.")
    revision: str = Field(description="Its revision.")
    message: str = Field(description="Bytes done of all, and how fast, in the pod's own words.")
    progressed_at: Annotated[
        str, Field(json_schema_extra={"format": "date-time"}, description="When the message last changed.")
    ]


class InferenceServiceStatus(ContractModel):
    """What the operator observed in its last pass."""

    observed_generation: int | None = Field(
        default=None, description="metadata.generation of the spec this status is about."
    )
    url: str | None = Field(default=None, description="Where the API is, inside the cluster.")
    replicas: int = Field(default=0, description="Pods of all revisions.")
    ready_replicas: int = Field(default=0, description="Pods that are verified and ready.")
    selector: str = Field(default="", description="Selector of the pods, for the scale subresource.")
    serving: RevisionStatus | None = Field(default=None, description="The revision that takes traffic.")
    candidate: RevisionStatus | None = Field(
        default=None, description="The revision on its way to replace it; absent when there is none."
    )
    rollout: RolloutStatus | None = None
    recorded: RecordedStatus | None = None
    review: ReviewStatus | None = None
    verdicts: tuple[PodVerdict, ...] = Field(
        default=(), max_length=VERDICTS_MAX, description="Pods that are not verified, and why; at most 10."
    )
    downloads: tuple[PodDownload, ...] = Field(
        default=(), max_length=DOWNLOADS_MAX, description="Pods that are fetching; at most 10."
    )
    conditions: tuple[Condition, ...] = Field(
        default=(),
        description="Ready: the current spec serves. Available: clients are answered, by whichever revision. Degraded: a person should "
        "look.",
        max_length=CONDITIONS_MAX,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )

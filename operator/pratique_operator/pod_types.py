"""The part of a PodTemplateSpec that a user may set. Everything else of the pod belongs to the operator, because it is
what makes the pod's verdict mean something (command, config, probes, security)."""

from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field, StringConstraints

from pratique_contract.model import ContractModel
from pratique_operator.schema import DataKey, ObjectName, PassThrough, Quantity, ShortText, cel, rules

# Set by the operator itself, or able to change what the process loads behind the gate's back.
RESERVED_ENV: Final = ("HOME", "HF_HUB_OFFLINE", "PYTHONPATH", "PYTHONHOME", "LD_PRELOAD", "LD_LIBRARY_PATH", "TMPDIR")

LabelValue = Annotated[str, StringConstraints(max_length=63)]


class KeyRef(ContractModel):
    """One key of a ConfigMap or Secret in the service's namespace."""

    name: ObjectName
    key: DataKey


class EnvVarSource(ContractModel):
    """Where a variable's value comes from. A changed value is a new revision: running pods would not see it."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel(
                "has(self.configMapKeyRef) != has(self.secretKeyRef)",
                "valueFrom needs exactly one of configMapKeyRef and secretKeyRef",
            )
        )
    )

    config_map_key_ref: KeyRef | None = None
    secret_key_ref: KeyRef | None = None


class EnvVar(ContractModel):
    """One environment variable of the pod's containers: the server's, and of the one that fetches (a proxy, for example)."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel("has(self.value) != has(self.valueFrom)", "an env entry needs exactly one of value and valueFrom"),
            cel(
                f"!(self.name in {list(RESERVED_ENV)!r})",
                f"these variables belong to the operator: {', '.join(RESERVED_ENV)}",
                fieldPath=".name",
            ),
        )
    )

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=128)]
    value: Annotated[str, StringConstraints(max_length=4096)] | None = None
    value_from: EnvVarSource | None = None


class Resources(ContractModel):
    """Requests and limits of the serving container."""

    requests: dict[str, Quantity] | None = Field(default=None, max_length=16)
    limits: dict[str, Quantity] | None = Field(default=None, max_length=16)


class Toleration(ContractModel):
    """A taint the pods accept."""

    key: ShortText | None = None
    operator: Literal["Exists", "Equal"] | None = None
    value: Annotated[str, StringConstraints(max_length=63)] | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    toleration_seconds: Annotated[int, Field(ge=0)] | None = None


class LocalRef(ContractModel):
    """An object in the service's namespace, by name."""

    name: ObjectName


class PodMetadata(ContractModel):
    """Labels and annotations added to the pods. The operator's own labels win."""

    labels: dict[str, LabelValue] | None = Field(default=None, max_length=32)
    annotations: dict[str, Annotated[str, StringConstraints(max_length=4096)]] | None = Field(
        default=None, max_length=32
    )


class PodOptions(ContractModel):
    """Where and with what the pods run."""

    resources: Resources | None = None
    node_selector: dict[str, LabelValue] | None = Field(default=None, max_length=32)
    tolerations: tuple[Toleration, ...] | None = Field(default=None, max_length=32)
    affinity: PassThrough | None = None
    topology_spread_constraints: tuple[PassThrough, ...] | None = Field(default=None, max_length=8)
    priority_class_name: ObjectName | None = None
    runtime_class_name: ObjectName | None = None
    env: tuple[EnvVar, ...] | None = Field(
        default=None,
        max_length=64,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    image_pull_secrets: tuple[LocalRef, ...] | None = Field(default=None, max_length=8)
    service_account_name: ObjectName | None = Field(
        default=None, description="An existing ServiceAccount; without it the operator makes one that may do nothing."
    )


class PodTemplate(ContractModel):
    """The useful subset of a PodTemplateSpec."""

    metadata: PodMetadata | None = None
    spec: PodOptions | None = None


def to_plain(value: ContractModel | None) -> dict[str, Any]:
    """The fields that are set, under their API names; empty for None."""
    return {} if value is None else value.model_dump(mode="json", by_alias=True, exclude_none=True)

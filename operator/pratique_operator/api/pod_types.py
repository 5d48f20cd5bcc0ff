"""The part of a PodTemplateSpec that a user may set. Everything else of the pod belongs to the operator, because it is
what makes the pod's verdict mean something (command, config, probes, security)."""

from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field, StringConstraints

from pratique_contract.model import ContractModel
from pratique_operator.api.schema import DataKey, ObjectName, PassThrough, Quantity, Shape, ShortText, cel, rules
from pratique_operator.api.volume_types import MOUNT_RULES, VOLUMES_MAX, Volume, VolumeMount

# Set by the operator itself, or able to change what the process loads behind the gate's back.
RESERVED_ENV: Final = (
    *("HOME", "HF_HUB_OFFLINE", "TMPDIR", "PATH"),
    *("PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "PYTHONPLATLIBDIR", "PYTHONPYCACHEPREFIX"),
    # Libraries: the loader's, and those that another library loads by name (OpenSSL's providers, glibc's converters, the driver's tools).
    *("LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT"),
    *("OPENSSL_CONF", "OPENSSL_MODULES", "OPENSSL_ENGINES", "GCONV_PATH", "CUDA_INJECTION64_PATH"),
)

LabelValue = Annotated[str, StringConstraints(max_length=63)]


class KeyRef(ContractModel):
    """One key of a ConfigMap or Secret in the service's namespace."""

    name: ObjectName = Field(description="Name of the ConfigMap or Secret, in the service's namespace.")
    key: DataKey = Field(description="The key in it.")


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

    config_map_key_ref: KeyRef | None = Field(default=None, description="A key of a ConfigMap.")
    secret_key_ref: KeyRef | None = Field(default=None, description="A key of a Secret.")


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

    name: Annotated[
        str,
        Shape(
            r"^[A-Za-z_][A-Za-z0-9_]*$",
            "a variable's name has letters, digits and _ only, and begins with no digit",
            128,
        ),
    ] = Field(description=f"The variable; not one of {', '.join(RESERVED_ENV)}, which belong to the operator.")
    value: Annotated[str, StringConstraints(max_length=4096)] | None = Field(
        default=None, description="The value itself. Exactly one of value and valueFrom."
    )
    value_from: EnvVarSource | None = None


class Resources(ContractModel):
    """Requests and limits of the serving container."""

    requests: dict[str, Quantity] | None = Field(
        default=None, max_length=16, description="What the node must have free, for example cpu: 4, memory: 16Gi."
    )
    limits: dict[str, Quantity] | None = Field(
        default=None, max_length=16, description="What the container may take, for example memory: 20Gi."
    )


class Toleration(ContractModel):
    """A taint the pods accept."""

    key: ShortText | None = Field(default=None, description="The taint's key. Default: every key, with Exists.")
    operator: Literal["Exists", "Equal"] | None = Field(
        default=None, description="How value is compared. Default Equal."
    )
    value: Annotated[str, StringConstraints(max_length=63)] | None = Field(
        default=None, description="The taint's value, with Equal."
    )
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        default=None, description="The taint's effect. Default: every effect."
    )
    toleration_seconds: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="How long a NoExecute taint is accepted. Default: for ever."
    )


class LocalRef(ContractModel):
    """An object in the service's namespace, by name."""

    name: ObjectName = Field(description="Its name.")


class PodMetadata(ContractModel):
    """Labels and annotations added to the pods. The operator's own labels win."""

    labels: dict[str, LabelValue] | None = Field(
        default=None, max_length=32, description="Labels of the pods. A changed one is a new revision."
    )
    annotations: dict[str, Annotated[str, StringConstraints(max_length=4096)]] | None = Field(
        default=None, max_length=32, description="Annotations of the pods. A changed one is a new revision."
    )


class PodOptions(ContractModel):
    """Where and with what the pods run."""

    model_config = ConfigDict(json_schema_extra=rules(*MOUNT_RULES))

    resources: Resources | None = None
    node_selector: dict[str, LabelValue] | None = Field(
        default=None, max_length=32, description="Labels a node must have."
    )
    tolerations: tuple[Toleration, ...] | None = Field(
        default=None, max_length=32, description="Taints the pods accept."
    )
    affinity: PassThrough | None = Field(default=None, description="As in a pod's spec, handed on as it is.")
    topology_spread_constraints: tuple[PassThrough, ...] | None = Field(
        default=None, max_length=8, description="As in a pod's spec, handed on as they are."
    )
    priority_class_name: ObjectName | None = Field(default=None, description="An existing PriorityClass.")
    runtime_class_name: ObjectName | None = Field(default=None, description="An existing RuntimeClass.")
    env: tuple[EnvVar, ...] | None = Field(
        default=None,
        max_length=64,
        description="Variables of the pod's containers: the server's, and of the one that fetches (a proxy, for example).",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    volumes: tuple[Volume, ...] | None = Field(
        default=None,
        max_length=VOLUMES_MAX,
        description="Files beside the release for the serving container. A changed one is a new revision.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    volume_mounts: tuple[VolumeMount, ...] | None = Field(
        default=None,
        max_length=VOLUMES_MAX,
        description="Where the serving container sees them; the one that fetches does not.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["mountPath"]},
    )
    image_pull_secrets: tuple[LocalRef, ...] | None = Field(
        default=None, max_length=8, description="Secrets with which the image is pulled."
    )
    service_account_name: ObjectName | None = Field(
        default=None, description="An existing ServiceAccount; without it the operator makes one that may do nothing."
    )


class PodTemplate(ContractModel):
    """The useful subset of a PodTemplateSpec. Command, probes, security and what is mounted for the release belong to
    the operator."""

    metadata: PodMetadata | None = None
    spec: PodOptions | None = None


def to_plain(value: ContractModel | None) -> dict[str, Any]:
    """The fields that are set, under their API names; empty for None."""
    return {} if value is None else value.model_dump(mode="json", by_alias=True, exclude_none=True)

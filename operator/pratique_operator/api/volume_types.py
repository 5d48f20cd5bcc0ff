"""Volumes a user may bring into the serving container, and where.

Only below ``/mnt`` and at ``/dev/shm``, where neither the operator nor an image has anything: what lies where the model, the record, the
temporary files or the image's own program are is what the gate's verdict stands for, and an image's layout is not known here.
"""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from pratique_contract.model import ContractModel
from pratique_operator.api.schema import DataKey, ObjectName, Shape, Size, cel, rules

VOLUMES_MAX = 16
ITEMS_MAX = 32

VolumeName = Annotated[
    str, Shape(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "a volume's name has lower-case letters, digits and - only", 50)
]
MountPath = Annotated[
    str,
    Shape(
        r"^(/mnt(/[A-Za-z0-9_-][A-Za-z0-9._-]*)+|/dev/shm)$",
        "a volume is mounted below /mnt, or at /dev/shm: everywhere else lie files that the release is made of",
        256,
    ),
]
RelativePath = Annotated[
    str,
    Shape(
        r"^[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*$",
        "a path inside a volume is relative, of letters, digits, -, _ and ., and begins no part with a dot",
        256,
    ),
]


class KeyToPath(ContractModel):
    """One key of a ConfigMap or Secret as a file."""

    key: DataKey = Field(description="The key.")
    path: RelativePath = Field(description="The file it becomes, relative to the volume.")


Items = Annotated[
    tuple[KeyToPath, ...],
    Field(min_length=1, max_length=ITEMS_MAX, description="Keys that become files. Default: every key, by its name."),
]


class ConfigMapVolume(ContractModel):
    """A ConfigMap of the service's namespace. Its content is part of the revision: another one rolls new pods."""

    name: ObjectName = Field(description="Its name.")
    items: Items | None = None


class SecretVolume(ContractModel):
    """A Secret of the service's namespace. Its content is part of the revision: another one rolls new pods."""

    secret_name: ObjectName = Field(description="Its name.")
    items: Items | None = None


class EmptyDirVolume(ContractModel):
    """Room for files that go with the pod."""

    medium: Literal["Memory"] | None = Field(
        default=None, description="Memory: counts into the container's memory. Default: the node's disk."
    )
    size_limit: Size = Field(description="A pod that takes more is evicted.")


class ClaimVolume(ContractModel):
    """A PersistentVolumeClaim of the service's namespace. What lies on it is not part of the revision."""

    claim_name: ObjectName = Field(description="Its name.")
    read_only: bool | None = Field(default=None, description="Mounted read-only wherever it is. Default false.")


class Volume(ContractModel):
    """Files for the serving container beside the release: certificates, licences, room for shared memory."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel(
                "[has(self.configMap), has(self.secret), has(self.emptyDir), has(self.persistentVolumeClaim)]"
                ".filter(given, given).size() == 1",
                "a volume needs exactly one of configMap, secret, emptyDir and persistentVolumeClaim",
            )
        )
    )

    name: VolumeName = Field(description="What its mounts name it by.")
    config_map: ConfigMapVolume | None = None
    secret: SecretVolume | None = None
    empty_dir: EmptyDirVolume | None = None
    persistent_volume_claim: ClaimVolume | None = None


class VolumeMount(ContractModel):
    """Where the serving container sees a volume."""

    name: VolumeName = Field(description="One of template.spec.volumes.")
    mount_path: MountPath = Field(
        description="Below /mnt, or /dev/shm. Nothing of the release is there; no path lies in another one."
    )
    sub_path: RelativePath | None = Field(
        default=None, description="One folder or file of the volume. Default: all of it."
    )
    read_only: bool | None = Field(
        default=None,
        description="Default false. A claim the model, an adapter, the tokenizer or the cache lies on: true.",
    )


MOUNT_RULES = (
    cel(
        "!has(self.volumeMounts) || self.volumeMounts.all(m, has(self.volumes) && self.volumes.exists(v, v.name == m.name))",
        "a mount names one of template.spec.volumes",
        fieldPath=".volumeMounts",
    ),
    cel(
        "!has(self.volumes) || self.volumes.all(v, has(self.volumeMounts) && self.volumeMounts.exists(m, m.name == v.name))",
        "a volume that no mount names does nothing",
        fieldPath=".volumes",
    ),
    cel(
        "!has(self.volumeMounts) || self.volumeMounts.all(a, "
        "!self.volumeMounts.exists(b, b.mountPath.startsWith(a.mountPath + '/')))",
        "no mount may lie inside another one",
        fieldPath=".volumeMounts",
    ),
)

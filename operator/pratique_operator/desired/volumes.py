"""The user's own volumes and their mounts in the serving container, nowhere else. Pure.

Their names in the pod begin with ``user-``, so that none can be one of ours; where they may be mounted the API says.
"""

from typing import Any

from pratique_contract.sources import scheme_of
from pratique_operator.api.pod_types import PodOptions, to_plain
from pratique_operator.api.types import InferenceServiceSpec
from pratique_operator.api.volume_types import Volume, VolumeMount
from pratique_operator.desired.sources import declared_sources
from pratique_operator.errors import InvalidSpecError
from pratique_operator.names import user_volume

Manifest = dict[str, Any]

FIELD = "spec.template.spec.volumeMounts"


def build_user_volumes(options: PodOptions) -> list[Manifest]:
    """The pod's volumes."""
    return [_under_our_name(volume) for volume in options.volumes or ()]


def build_user_mounts(spec: InferenceServiceSpec, options: PodOptions) -> list[Manifest]:
    """The serving container's mounts. Raises ``InvalidSpecError`` for one that would let the server write over its own release."""
    volumes = {volume.name: volume for volume in options.volumes or ()}
    kept = _release_claims(spec)
    for mount in options.volume_mounts or ():
        if mount.name not in volumes:
            raise InvalidSpecError(f"{FIELD}[{mount.mount_path}]", f"there is no volume {mount.name}")
        claim = volumes[mount.name].persistent_volume_claim
        if claim is not None and claim.claim_name in kept and not _is_read_only(mount, volumes[mount.name]):
            raise InvalidSpecError(
                f"{FIELD}[{mount.mount_path}]",
                f"claim {claim.claim_name} holds {kept[claim.claim_name]}; what the server is made of can only be mounted readOnly",
            )
    return [
        # Said at the mount, too: the volume may become one with another of the same claim that can be written.
        {**_under_our_name(mount), **({"readOnly": True} if _is_read_only(mount, volumes[mount.name]) else {})}
        for mount in options.volume_mounts or ()
    ]


def _under_our_name(value: Volume | VolumeMount) -> Manifest:
    return {**_without_false(to_plain(value)), "name": user_volume(value.name)}


def _without_false(value: Any) -> Any:
    """The API server leaves out ``readOnly: false``; asked for again in each pass, it would be written in each pass."""
    if not isinstance(value, dict):
        return value
    return {name: _without_false(inner) for name, inner in value.items() if inner is not False}


def _is_read_only(mount: VolumeMount, volume: Volume) -> bool:
    claim = volume.persistent_volume_claim
    return bool(mount.read_only or (claim is not None and claim.read_only))


def _release_claims(spec: InferenceServiceSpec) -> dict[str, str]:
    """Claims with files of the release, and the field that puts them there."""
    found = {
        source.uri.partition("://")[2].partition("/")[0]: source.field
        for source in declared_sources(spec)
        if scheme_of(source.uri) == "pvc"
    }
    cache = spec.download.cache if spec.download is not None else None
    if cache is not None and cache.claim_name is not None:
        found.setdefault(cache.claim_name, "spec.download.cache")
    return found

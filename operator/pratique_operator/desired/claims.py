"""One volume for each claim of a pod, however many sources and caches lie on it.

A pod that names one claim in two volumes never starts: the kubelet tracks a pod's volumes by what is behind them and waits for the
second one for ever, without a word for its first two minutes (seen on 1.34).
"""

from typing import Any

Manifest = dict[str, Any]


def merge_claims(pod: Manifest) -> Manifest:
    """The same pod spec with the mounts of every further volume of a claim moved to the first. It is read-only if all of them are; the
    mounts say for themselves what their container may do."""
    first: dict[str, Manifest] = {}
    renamed: dict[str, str] = {}
    volumes: list[Manifest] = []
    for volume in pod["volumes"]:
        claim = volume.get("persistentVolumeClaim")
        known = None if claim is None else first.get(claim["claimName"])
        if claim is None or known is None:
            kept = volume if claim is None else {**volume, "persistentVolumeClaim": dict(claim)}
            volumes.append(kept)
            if claim is not None:
                first[claim["claimName"]] = kept
            continue
        renamed[volume["name"]] = known["name"]
        if not claim.get("readOnly"):
            known["persistentVolumeClaim"].pop("readOnly", None)
    merged = {**pod, "volumes": volumes}
    for kind in ("initContainers", "containers"):
        if kind in pod:
            merged[kind] = [_rename_mounts(container, renamed) for container in pod[kind]]
    return merged


def _rename_mounts(container: Manifest, renamed: dict[str, str]) -> Manifest:
    mounts = [{**mount, "name": renamed.get(mount["name"], mount["name"])} for mount in container["volumeMounts"]]
    return {**container, "volumeMounts": mounts}

"""Where a model or tokenizer lies and how a pod mounts it. Pure: a URI in, a volume and a mount out."""

from dataclasses import dataclass
from typing import Any

from pratique_operator.errors import InvalidSpecError

Manifest = dict[str, Any]


@dataclass(frozen=True)
class Mount:
    """A read-only volume and where the container sees it."""

    volume: Manifest
    mount: Manifest


def build_mount(uri: str, *, field: str, volume: str, path: str, allow_file_sources: bool) -> Mount:
    """Mount ``uri`` read-only at ``path``; raises ``InvalidSpecError`` naming ``field``."""
    scheme, _, rest = uri.partition("://")
    if scheme == "pvc":
        claim, _, folder = rest.partition("/")
        mount: Manifest = {"name": volume, "mountPath": path, "readOnly": True}
        if folder.strip("/"):
            mount["subPath"] = folder.strip("/")
        source: Manifest = {"persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
        return Mount({"name": volume, **source}, mount)
    if scheme == "file":
        if not allow_file_sources:
            raise InvalidSpecError(
                field,
                "file:// reads a folder of the node, which this operator does not allow; "
                "use pvc://CLAIM/PATH, or install the chart with allowFileSources=true",
            )
        # Directory: a missing folder keeps the pod from starting instead of becoming an empty one.
        return Mount(
            {"name": volume, "hostPath": {"path": rest.rstrip("/"), "type": "Directory"}},
            {"name": volume, "mountPath": path, "readOnly": True},
        )
    raise InvalidSpecError(field, f"{scheme}:// is not supported yet; use pvc://CLAIM/PATH or file:///PATH")

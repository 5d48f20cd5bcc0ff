"""The container that fetches before the server starts: the only one with the network, the credentials and a writable cache.

It runs the server's image without torch, says on the management port how far it is (``pods.py`` asks) and leaves its last word, a
reason code and a sentence, as its termination message.
"""

from typing import Any, Final

from pratique_contract import constants
from pratique_operator import names
from pratique_operator.api.pod_types import PodOptions, Resources, to_plain
from pratique_operator.api.source_types import DownloadSpec
from pratique_operator.api.types import InferenceServiceSpec
from pratique_operator.config import OperatorConfig
from pratique_operator.desired.sources import build_cache_volume

Manifest = dict[str, Any]

RESTRICTED: Final = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
CONFIG_MOUNT: Final = {"name": names.VOLUME_CONFIG, "mountPath": constants.CONFIG_DIR, "readOnly": True}

FETCH_TMP_SIZE_LIMIT: Final = "1Gi"
# Files go to disk as they come, so memory does not grow with the model (kserve#5326). Only where the user says nothing.
DEFAULT_RESOURCES: Final = {
    "requests": {"cpu": "100m", "memory": "256Mi"},
    "limits": {"memory": "1Gi"},
}
_SHARED_RESOURCES: Final = ("cpu", "memory")


def build_fetcher(spec: InferenceServiceSpec, options: PodOptions, *, image: str, config: OperatorConfig) -> Manifest:
    """The init container. Its variables are the user's too: that is where a proxy is named."""
    mounts = [
        CONFIG_MOUNT,
        # A folder of its own: what it leaves there is not what the server finds at home.
        {"name": names.VOLUME_FETCH_TMP, "mountPath": "/tmp"},  # noqa: S108
        {"name": names.VOLUME_CACHE, "mountPath": constants.MODEL_MOUNT},
    ]
    if spec.download is not None and spec.download.credentials_secret_ref is not None:
        mounts.append(
            {"name": names.VOLUME_CREDENTIALS, "mountPath": constants.CREDENTIALS_DIR, "readOnly": True},
        )
    return {
        "name": names.FETCHER,
        "image": image,
        "imagePullPolicy": config.image_pull_policy,
        "command": ["python3", "-m", "pratique_server.fetch", "--config", constants.SERVING_PATH],
        "env": [
            {"name": "HOME", "value": "/tmp"},  # noqa: S108
            {"name": "HF_HOME", "value": "/tmp/huggingface"},  # noqa: S108
            *to_plain(options).get("env", ()),
        ],
        "securityContext": RESTRICTED,
        "resources": _resources(options.resources, _reserved_disk(spec.download)),
        # A crash without a last word is told by the end of its log.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }


def build_fetcher_volumes(download: DownloadSpec | None, config: OperatorConfig) -> list[Manifest]:
    """The cache, room for temporary files, and the credentials when there are any."""
    cache = None if download is None else download.cache
    volumes = [
        build_cache_volume(cache, allow_file_sources=config.allow_file_sources),
        {"name": names.VOLUME_FETCH_TMP, "emptyDir": {"sizeLimit": FETCH_TMP_SIZE_LIMIT}},
    ]
    if download is not None and download.credentials_secret_ref is not None:
        secret = download.credentials_secret_ref.name
        volumes.append({"name": names.VOLUME_CREDENTIALS, "secret": {"secretName": secret, "defaultMode": 0o440}})
    return volumes


def _resources(resources: Resources | None, disk: str | None) -> Manifest:
    """CPU and memory as the server has them: the two never run at once, so it costs nothing and keeps the pod's quality of service.
    Devices are not asked for."""
    given = to_plain(resources)
    shared = {
        kind: {name: amount for name, amount in amounts.items() if name in _SHARED_RESOURCES}
        for kind, amounts in given.items()
    }
    chosen = {kind: amounts for kind, amounts in shared.items() if amounts} or DEFAULT_RESOURCES
    if disk is None:
        return dict(chosen)
    return {**chosen, "requests": {**chosen.get("requests", {}), "ephemeral-storage": disk}}


def _reserved_disk(download: DownloadSpec | None) -> str | None:
    """A size the user wrote down is also asked of the scheduler: better no node than one that fills up in mid-download."""
    cache = None if download is None else download.cache
    return None if cache is None or cache.empty_dir is None else cache.empty_dir.size_limit

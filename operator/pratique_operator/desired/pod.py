"""The pod of one revision: restricted security, offline, read-only, three probes and a drain that outlives its streams. A pod with a
source that must be fetched has a first container for it (``fetch.py``).

``build_pod_template`` makes everything but what names the revision; ``name_revision`` adds that once the revision, a hash of the
whole with an empty name, is known.
"""

import math
from typing import Any, Final

from pratique_contract import constants
from pratique_operator import labels, names
from pratique_operator.api.pod_types import PodOptions, to_plain
from pratique_operator.api.types import InferenceServiceSpec
from pratique_operator.config import OperatorConfig
from pratique_operator.desired.claims import merge_claims
from pratique_operator.desired.fetch import CONFIG_MOUNT, RESTRICTED, build_fetcher, build_fetcher_volumes
from pratique_operator.desired.sources import Mount, build_mounts, declared_sources
from pratique_operator.desired.volumes import build_user_mounts, build_user_volumes

Manifest = dict[str, Any]

USER_ID: Final = 65532
TMP_SIZE_LIMIT: Final = "2Gi"
STARTUP_PERIOD_SECONDS: Final = 5
# The kubelet kills at the end of the grace period; the server needs a moment after its last stream.
GRACE_MARGIN_SECONDS: Final = 10

_COMMON_ENV: Final = (
    {"name": "HOME", "value": "/tmp"},  # noqa: S108 - the only writable folder of the container
    {"name": "HF_HUB_OFFLINE", "value": "1"},
)


def image_of(spec: InferenceServiceSpec, config: OperatorConfig) -> str:
    """The server image: the spec's, else the operator's."""
    return spec.engine.image or config.server_image


def build_pod_template(spec: InferenceServiceSpec, *, service: str, config: OperatorConfig) -> Manifest:
    """``metadata`` (the user's labels and annotations) and ``spec`` without anything that names the revision."""
    options = spec.template.spec if spec.template is not None and spec.template.spec is not None else PodOptions()
    sources = declared_sources(spec)
    mounts = [*build_mounts(sources, allow_file_sources=config.allow_file_sources), *_secret_mounts(spec)]
    fetched = any(source.fetched for source in sources)
    pod: Manifest = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "serviceAccountName": options.service_account_name or names.entry(service),
        "terminationGracePeriodSeconds": spec.drain.pre_stop_seconds
        + spec.drain.deadline_seconds
        + GRACE_MARGIN_SECONDS,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER_ID,
            "runAsGroup": USER_ID,
            "fsGroup": USER_ID,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(spec, options, mounts, config)],
        "volumes": [
            {"name": names.VOLUME_TMP, "emptyDir": {"sizeLimit": TMP_SIZE_LIMIT}},
            *(mount.volume for mount in mounts if mount.volume is not None),
            *(build_fetcher_volumes(spec.download, config) if fetched else ()),
            *build_user_volumes(options),
        ],
        **_placement(options),
    }
    if fetched:
        pod["initContainers"] = [build_fetcher(spec, options, image=image_of(spec, config), config=config)]
    metadata = to_plain(spec.template.metadata if spec.template is not None else None)
    return {"metadata": metadata, "spec": merge_claims(pod)}


def name_revision(template: Manifest, *, service: str, revision: str, annotations: dict[str, str]) -> Manifest:
    """The final template: our labels over the user's, the release in annotations, the revision's ConfigMap."""
    metadata: Manifest = {
        "labels": {**template["metadata"].get("labels", {}), **labels.revision_labels(service, revision)}
    }
    all_annotations = {**template["metadata"].get("annotations", {}), **annotations}
    if all_annotations:
        metadata["annotations"] = all_annotations
    config = {"name": names.VOLUME_CONFIG, "configMap": {"name": names.revision_child(service, revision)}}
    pod = template["spec"]
    return {"metadata": metadata, "spec": {**pod, "volumes": [config, *pod["volumes"]]}}


def _placement(options: PodOptions) -> Manifest:
    values = to_plain(options)
    wanted = (
        "nodeSelector",
        "tolerations",
        "affinity",
        "topologySpreadConstraints",
        "priorityClassName",
        "runtimeClassName",
        "imagePullSecrets",
    )
    return {name: values[name] for name in wanted if values.get(name)}


def _secret_mounts(spec: InferenceServiceSpec) -> list[Mount]:
    mounts = []
    if spec.chat_template is not None and spec.chat_template.secret_key_ref is not None:
        ref = spec.chat_template.secret_key_ref
        items = [{"key": ref.key, "path": ref.key}]
        mounts.append(_secret_mount(names.VOLUME_TEMPLATE, names.TEMPLATE_DIR, ref.name, items=items))
    if spec.auth is not None:
        mounts.append(_secret_mount(names.VOLUME_KEYS, names.KEYS_DIR, spec.auth.api_key_secret_ref.name))
    return mounts


def _secret_mount(volume: str, path: str, secret: str, **more: Any) -> Mount:
    return Mount(
        {"name": volume, "secret": {"secretName": secret, **more}},
        {"name": volume, "mountPath": path, "readOnly": True},
    )


def _container(
    spec: InferenceServiceSpec, options: PodOptions, mounts: list[Mount], config: OperatorConfig
) -> Manifest:
    values = to_plain(options)
    container: Manifest = {
        "name": names.CONTAINER,
        "image": image_of(spec, config),
        "imagePullPolicy": config.image_pull_policy,
        "args": ["serve", "--config", constants.SERVING_PATH],
        "env": [*_COMMON_ENV, *values.get("env", ())],
        "ports": [
            {"name": constants.API_PORT_NAME, "containerPort": constants.API_PORT, "protocol": "TCP"},
            {"name": constants.MANAGEMENT_PORT_NAME, "containerPort": constants.MANAGEMENT_PORT, "protocol": "TCP"},
        ],
        "securityContext": RESTRICTED,
        "volumeMounts": [
            CONFIG_MOUNT,
            {"name": names.VOLUME_TMP, "mountPath": "/tmp"},  # noqa: S108
            *(mount.mount for mount in mounts),
            *build_user_mounts(spec, options),
        ],
        # The gate leaves its verdict; a crash before it is told by the end of the log.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **_probes(spec),
    }
    if values.get("resources"):
        container["resources"] = values["resources"]
    if spec.drain.pre_stop_seconds:
        container["lifecycle"] = {"preStop": {"sleep": {"seconds": spec.drain.pre_stop_seconds}}}
    return container


def _probes(spec: InferenceServiceSpec) -> Manifest:
    """The startup probe passes with the verdict and prints its reason, so ``kubectl describe pod`` shows why a pod waits.
    Liveness never depends on the verdict: a restart does not cure a wrong artefact."""
    return {
        "startupProbe": {
            "exec": {"command": ["python3", "-m", "pratique_server.probe", "startupz"]},
            "periodSeconds": STARTUP_PERIOD_SECONDS,
            "timeoutSeconds": 5,
            "failureThreshold": math.ceil(spec.startup.timeout_seconds / STARTUP_PERIOD_SECONDS),
        },
        "readinessProbe": _http_probe(constants.READYZ_PATH, period=2, failures=3),
        "livenessProbe": _http_probe(constants.LIVEZ_PATH, period=10, failures=6),
    }


def _http_probe(path: str, *, period: int, failures: int) -> Manifest:
    return {
        "httpGet": {"path": path, "port": constants.MANAGEMENT_PORT_NAME},
        "periodSeconds": period,
        # A busy host answers late; late is not wrong.
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }

"""Golden manifests: the exact objects that are applied, written down as a person would read them."""

from typing import Any

import pytest
import yaml

from pratique_contract import constants
from pratique_contract.sources import cache_folder
from pratique_operator.api.types import parse_spec
from pratique_operator.config import OperatorConfig
from pratique_operator.desired import children as build
from pratique_operator.desired.pod import build_pod_template
from pratique_operator.errors import InvalidSpecError
from tests.unit.operator.worlds import CONFIG, make_owner, make_target

HASH = constants.ANNOTATION_SPEC_HASH


def without_hash(manifest: dict[str, Any]) -> dict[str, Any]:
    """The manifest without the digest of itself."""
    annotations = {k: v for k, v in manifest["metadata"]["annotations"].items() if k != HASH}
    metadata = {**manifest["metadata"], "annotations": annotations}
    if not annotations:
        del metadata["annotations"]
    return {**manifest, "metadata": metadata}


def golden(text: str) -> Any:
    return yaml.safe_load(text.replace("REVISION", make_target().revision))


OWNERS = """
  - apiVersion: serving.pratique.dev/v1alpha1
    kind: InferenceService
    name: svc
    uid: u-1
    controller: true
    blockOwnerDeletion: false
"""
SERVICE_LABELS = """
    app.kubernetes.io/name: pratique
    app.kubernetes.io/instance: svc
    app.kubernetes.io/managed-by: pratique
    serving.pratique.dev/service: svc
"""


def test_entry_service_selects_one_revision() -> None:
    built = build.build_entry_service(make_owner(), make_target().revision)
    assert without_hash(built) == golden(f"""
apiVersion: v1
kind: Service
metadata:
  name: svc
  namespace: ns
  labels: {SERVICE_LABELS}
  ownerReferences: {OWNERS}
spec:
  type: ClusterIP
  selector:
    serving.pratique.dev/service: svc
    serving.pratique.dev/revision: REVISION
  publishNotReadyAddresses: false
  internalTrafficPolicy: Cluster
  ports:
  - {{name: http, port: 80, targetPort: http, protocol: TCP}}
""")


def test_revision_service_and_config_map_carry_the_revision() -> None:
    target = make_target()
    assert without_hash(build.build_revision_service(make_owner(), target.revision)) == golden(f"""
apiVersion: v1
kind: Service
metadata:
  name: svc-REVISION
  namespace: ns
  labels: {SERVICE_LABELS}
    serving.pratique.dev/revision: REVISION
  ownerReferences: {OWNERS}
spec:
  type: ClusterIP
  selector:
    serving.pratique.dev/service: svc
    serving.pratique.dev/revision: REVISION
  publishNotReadyAddresses: false
  internalTrafficPolicy: Cluster
  ports:
  - {{name: http, port: 80, targetPort: http, protocol: TCP}}
  - {{name: management, port: 8001, targetPort: management, protocol: TCP}}
""")
    config = build.build_config_map(make_owner(), target)
    assert (config["metadata"]["name"], config["immutable"]) == (f"svc-{target.revision}", True)
    assert sorted(config["data"]) == [constants.SERVING_FILE]


def test_disruption_budget_guards_the_serving_revision_only() -> None:
    built = build.build_disruption_budget(make_owner(), "rev")
    assert built["spec"] == golden("""
maxUnavailable: 1
unhealthyPodEvictionPolicy: AlwaysAllow
selector:
  matchLabels:
    serving.pratique.dev/service: svc
    serving.pratique.dev/revision: rev
""")


def test_service_account_has_no_token() -> None:
    built = build.build_service_account(make_owner())
    assert (built["metadata"]["name"], built["automountServiceAccountToken"]) == ("svc", False)


def test_deployment_of_a_plain_service() -> None:
    target = make_target()
    built = build.build_deployment(make_owner(), target, replicas=2, marks={}, progress_deadline_seconds=2400)
    assert without_hash(built) == golden(f"""
apiVersion: apps/v1
kind: Deployment
metadata:
  name: svc-REVISION
  namespace: ns
  labels: {SERVICE_LABELS}
    serving.pratique.dev/revision: REVISION
  ownerReferences: {OWNERS}
spec:
  replicas: 2
  revisionHistoryLimit: 0
  progressDeadlineSeconds: 2400
  selector:
    matchLabels:
      serving.pratique.dev/service: svc
      serving.pratique.dev/revision: REVISION
  strategy: {{type: RollingUpdate, rollingUpdate: {{maxSurge: 0, maxUnavailable: 1}}}}
  template:
    metadata:
      labels: {SERVICE_LABELS.replace("    ", "        ")}
        serving.pratique.dev/revision: REVISION
    spec:
      automountServiceAccountToken: false
      enableServiceLinks: false
      serviceAccountName: svc
      terminationGracePeriodSeconds: 45
      securityContext:
        runAsNonRoot: true
        runAsUser: 65532
        runAsGroup: 65532
        fsGroup: 65532
        fsGroupChangePolicy: OnRootMismatch
        seccompProfile: {{type: RuntimeDefault}}
      containers:
      - name: server
        image: registry/server:1
        imagePullPolicy: IfNotPresent
        args: [serve, --config, /etc/pratique/serving.json]
        env:
        - {{name: HOME, value: /tmp}}
        - {{name: HF_HUB_OFFLINE, value: "1"}}
        ports:
        - {{name: http, containerPort: 8000, protocol: TCP}}
        - {{name: management, containerPort: 8001, protocol: TCP}}
        securityContext:
          allowPrivilegeEscalation: false
          readOnlyRootFilesystem: true
          capabilities: {{drop: [ALL]}}
        volumeMounts:
        - {{name: config, mountPath: /etc/pratique, readOnly: true}}
        - {{name: tmp, mountPath: /tmp}}
        - {{name: model, mountPath: /models/model, readOnly: true}}
        terminationMessagePolicy: FallbackToLogsOnError
        startupProbe:
          exec: {{command: [python3, -m, pratique_server.probe, startupz]}}
          periodSeconds: 5
          timeoutSeconds: 5
          failureThreshold: 360
        readinessProbe:
          httpGet: {{path: /readyz, port: management}}
          periodSeconds: 2
          timeoutSeconds: 5
          failureThreshold: 3
        livenessProbe:
          httpGet: {{path: /livez, port: management}}
          periodSeconds: 10
          timeoutSeconds: 5
          failureThreshold: 6
        lifecycle: {{preStop: {{sleep: {{seconds: 5}}}}}}
      volumes:
      - name: config
        configMap: {{name: svc-REVISION}}
      - name: tmp
        emptyDir: {{sizeLimit: 2Gi}}
      - name: model
        hostPath: {{path: /models/x, type: Directory}}
""")


def pod(**spec: Any) -> Any:
    return build_pod_template(parse_spec(make_owner(**spec)["spec"]), service="svc", config=CONFIG)["spec"]


def test_claims_are_mounted_read_only_at_their_folder() -> None:
    built = pod(model={"uri": "pvc://models/llama/8b"}, tokenizer={"uri": "pvc://models"})
    assert built["volumes"][1:] == golden("""
- {name: model, persistentVolumeClaim: {claimName: models, readOnly: true}}
""")
    assert built["containers"][0]["volumeMounts"][2:] == golden("""
- {name: model, mountPath: /models/model, readOnly: true, subPath: llama/8b}
- {name: model, mountPath: /models/tokenizer, readOnly: true}
""")


def test_claim_is_one_volume_even_when_it_is_also_the_cache() -> None:
    """A pod that names one claim in two volumes waits for the second for ever."""
    built = pod(model=HUB, tokenizer={"uri": "pvc://models/t"}, download={"cache": {"claimName": "models"}})
    claims = [volume for volume in built["volumes"] if "persistentVolumeClaim" in volume]
    assert claims == golden("[{name: tokenizer, persistentVolumeClaim: {claimName: models}}]")
    assert built["initContainers"][0]["volumeMounts"][-1] == {"name": "tokenizer", "mountPath": "/models"}
    assert built["containers"][0]["volumeMounts"][2:] == golden(f"""
- {{name: tokenizer, mountPath: {FOLDER}, subPath: {FOLDER.removeprefix("/models/")}, readOnly: true}}
- {{name: tokenizer, mountPath: /models/tokenizer, readOnly: true, subPath: t}}
""")


HUB = {"uri": "hf://owner/name", "revision": "a" * 40}
FOLDER = cache_folder(HUB["uri"], HUB["revision"])


def test_fetched_source_has_a_first_container_and_the_server_sees_its_folder_only() -> None:
    built = pod(model=HUB, download={"credentialsSecretRef": {"name": "hub"}, "cache": {"claimName": "models"}})
    (fetcher,) = built["initContainers"]
    assert fetcher == golden("""
name: fetch
image: registry/server:1
imagePullPolicy: IfNotPresent
command: [python3, -m, pratique_server.fetch, --config, /etc/pratique/serving.json]
env:
- {name: HOME, value: /tmp}
- {name: HF_HOME, value: /tmp/huggingface}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
resources:
  requests: {cpu: 100m, memory: 256Mi}
  limits: {memory: 1Gi}
terminationMessagePolicy: FallbackToLogsOnError
volumeMounts:
- {name: config, mountPath: /etc/pratique, readOnly: true}
- {name: fetch-tmp, mountPath: /tmp}
- {name: cache, mountPath: /models}
- {name: credentials, mountPath: /etc/pratique-credentials, readOnly: true}
""")
    assert built["volumes"][1:] == golden("""
- {name: cache, persistentVolumeClaim: {claimName: models}}
- {name: fetch-tmp, emptyDir: {sizeLimit: 1Gi}}
- {name: credentials, secret: {secretName: hub, defaultMode: 288}}
""")
    assert built["containers"][0]["volumeMounts"] == golden(f"""
- {{name: config, mountPath: /etc/pratique, readOnly: true}}
- {{name: tmp, mountPath: /tmp}}
- {{name: cache, mountPath: {FOLDER}, subPath: {FOLDER.removeprefix("/models/")}, readOnly: true}}
""")


def test_server_of_a_fetched_source_is_the_server_of_a_mounted_one() -> None:
    """Offline, without credentials, with a home nobody has written to."""
    (server,), (plain,) = pod(model=HUB)["containers"], pod()["containers"]
    assert {**server, "volumeMounts": []} == {**plain, "volumeMounts": []}


def test_pod_without_a_fetched_source_has_no_first_container() -> None:
    assert "initContainers" not in pod()


def test_fetched_and_mounted_sources_share_a_pod_and_one_fetched_twice_is_one_mount() -> None:
    adapters = [{"name": "style", "uri": "pvc://adapters/style"}, {"name": "tone", **HUB}]
    built = pod(model={**HUB, "adapters": adapters}, tokenizer={"uri": "file:///models/t"})
    mounts = {mount["mountPath"]: mount["name"] for mount in built["containers"][0]["volumeMounts"][2:]}
    assert mounts == {FOLDER: "cache", "/models/adapter-style": "adapter-style", "/models/tokenizer": "tokenizer"}
    assert [volume["name"] for volume in built["volumes"]] == [
        "tmp",
        "adapter-style",
        "tokenizer",
        "cache",
        "fetch-tmp",
    ]


@pytest.mark.parametrize(
    ("cache", "volume"),
    [
        (None, {"emptyDir": {"sizeLimit": "20Gi"}}),
        ({"emptyDir": {}}, {"emptyDir": {"sizeLimit": "20Gi"}}),
        ({"emptyDir": {"sizeLimit": "3Gi"}}, {"emptyDir": {"sizeLimit": "3Gi"}}),
        ({"claimName": "c"}, {"persistentVolumeClaim": {"claimName": "c"}}),
        ({"hostPath": "/var/lib/models"}, {"hostPath": {"path": "/var/lib/models", "type": "Directory"}}),
    ],
)
def test_cache_is_the_volume_the_user_chose_and_never_a_nodes_whole_disk(cache: Any, volume: dict[str, Any]) -> None:
    """kserve#4852: an emptyDir without a limit filled the node's system disk."""
    built = pod(model=HUB, download=None if cache is None else {"cache": cache})
    assert next(v for v in built["volumes"] if v["name"] == "cache") == {"name": "cache", **volume}


def test_cache_on_the_node_is_refused_where_folders_of_the_node_are() -> None:
    spec = parse_spec(make_owner(model=HUB, download={"cache": {"hostPath": "/x"}})["spec"])
    with pytest.raises(InvalidSpecError, match=r"spec\.download\.cache\.hostPath: it is a folder of the node"):
        build_pod_template(spec, service="svc", config=OperatorConfig(server_image="a/b:1"))


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        (None, {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}}),
        (
            {"requests": {"cpu": "2", "memory": "8Gi"}, "limits": {"cpu": "2", "memory": "8Gi", "nvidia.com/gpu": "1"}},
            {"requests": {"cpu": "2", "memory": "8Gi"}, "limits": {"cpu": "2", "memory": "8Gi"}},
        ),
        (
            {"limits": {"nvidia.com/gpu": "1"}},
            {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}},
        ),
        ({"requests": {"memory": "4Gi"}}, {"requests": {"memory": "4Gi"}}),
    ],
)
def test_fetching_asks_for_what_the_server_has_and_for_no_device(resources: Any, expected: dict[str, Any]) -> None:
    """kserve#5326: a fetcher with a limit of its own was killed. Equal amounts keep a Guaranteed pod Guaranteed."""
    template = {} if resources is None else {"template": {"spec": {"resources": resources}}}
    assert pod(model=HUB, **template)["initContainers"][0]["resources"] == expected


def test_size_of_the_cache_is_asked_of_the_scheduler() -> None:
    built = pod(model=HUB, download={"cache": {"emptyDir": {"sizeLimit": "3Gi"}}})
    assert built["initContainers"][0]["resources"]["requests"]["ephemeral-storage"] == "3Gi"


def test_users_variables_reach_the_fetcher_because_a_proxy_is_one() -> None:
    built = pod(model=HUB, template={"spec": {"env": [{"name": "HTTPS_PROXY", "value": "http://p"}]}})
    assert built["initContainers"][0]["env"][-1] == {"name": "HTTPS_PROXY", "value": "http://p"}


def test_grace_period_outlives_pre_stop_and_drain() -> None:
    built = pod(drain={"preStopSeconds": 20, "deadlineSeconds": 100})
    assert built["terminationGracePeriodSeconds"] > 120
    assert "lifecycle" not in pod(drain={"preStopSeconds": 0})["containers"][0]


def test_startup_budget_is_the_users() -> None:
    """kubeai#172, kthena PR #943, aibrix#772: a fixed budget kills pods while they load. kserve#5062: liveness did, since nothing
    held it back meanwhile; ai-runway/airunway#401: no probes at all."""
    container = pod(startup={"timeoutSeconds": 7200})["containers"][0]
    probe = container["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] == 7200
    assert {"livenessProbe", "readinessProbe"} <= set(container)


def test_template_options_reach_the_pod_and_own_variables_stay() -> None:
    options = {
        "resources": {"requests": {"cpu": 2, "nvidia.com/gpu": "1"}},
        "nodeSelector": {"disk": "fast"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {"x": 1}},
        "topologySpreadConstraints": [{"maxSkew": 1}],
        "priorityClassName": "high",
        "runtimeClassName": "nvidia",
        "env": [{"name": "A", "value": "1"}],
        "imagePullSecrets": [{"name": "pull"}],
        "serviceAccountName": "mine",
    }
    built = pod(template={"metadata": {"labels": {"a": "b"}}, "spec": options})
    container = built["containers"][0]
    assert container["resources"] == {"requests": {"cpu": "2", "nvidia.com/gpu": "1"}}
    assert [variable["name"] for variable in container["env"]] == ["HOME", "HF_HUB_OFFLINE", "A"]
    direct = set(options) - {"resources", "env"}
    assert {name: built[name] for name in direct} == {name: options[name] for name in direct}


def test_users_labels_never_replace_our_own() -> None:
    target = make_target(template={"metadata": {"labels": {constants.LABEL_SERVICE: "other", "a": "b"}}})
    built = build.build_deployment(make_owner(), target, replicas=1, marks={}, progress_deadline_seconds=1)
    found = built["spec"]["template"]["metadata"]["labels"]
    assert (found[constants.LABEL_SERVICE], found["a"]) == ("svc", "b")


def test_pod_has_no_token_no_privilege_and_no_network_to_a_hub() -> None:
    built = pod()
    container = built["containers"][0]
    assert built["automountServiceAccountToken"] is False
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert {"name": "HF_HUB_OFFLINE", "value": "1"} in container["env"]


def test_hash_of_the_intent_moves_with_the_intent() -> None:
    one = build.build_entry_service(make_owner(), "a")["metadata"]["annotations"][HASH]
    two = build.build_entry_service(make_owner(), "b")["metadata"]["annotations"][HASH]
    assert one != two

"""A node without a machine: a Node object whose pods this thread starts, fails and ends through the API, as a kubelet would.

The scheduler, the Deployment and EndpointSlice controllers, the garbage collector and the API server are real; only the kubelet's
part is played here, so that a pod's fate is a choice of the test and takes no seconds. The node has no OS label (DaemonSets stay
away) and a taint (other pods do too).
"""

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from kubernetes import client
from kubernetes.client.exceptions import ApiException

Manifest = dict[str, Any]
Outcome = Literal[
    "ready", "running", "pulling", "pull-failed", "crashing", "oom", "fetching", "fetch-failed", "fetch-again"
]
LABEL = "pratique.test/node"
HEARTBEAT_SECONDS = 10.0
PERIOD_SECONDS = 0.05


def timestamp() -> str:
    return datetime.now(UTC).replace(microsecond=0).isoformat().replace("+00:00", "Z")


def _fetcher(container: Manifest, outcome: Outcome, now: str) -> Manifest:
    """The state of the container that fetches; it has succeeded in every outcome that is not about it."""
    message = "DownloadUnauthorized: 401 from hub.example for owner/name\n"
    failed = {"startedAt": now, "finishedAt": now, "exitCode": 1, "reason": "Error", "message": message}
    states: dict[str, Manifest] = {
        "fetching": {"state": {"running": {"startedAt": now}}},
        "fetch-failed": {
            "state": {"waiting": {"reason": "CrashLoopBackOff"}},
            "lastState": {"terminated": failed},
            "restartCount": 1,
        },
        "fetch-again": {
            "state": {"running": {"startedAt": now}},
            "lastState": {"terminated": failed},
            "restartCount": 2,
        },
    }
    done = {"state": {"terminated": {**failed, "exitCode": 0, "reason": "Completed", "message": ""}}}
    common = {"name": container["name"], "image": container["image"], "imageID": "", "ready": False, "restartCount": 0}
    return {**common, **states.get(outcome, done)}


class FakeKubelet:
    """``outcomes[namespace]`` says how that namespace's pods fare: a function of the pod, asked anew at every round."""

    def __init__(self, api: client.ApiClient, name: str) -> None:
        self.name = name
        self.outcomes: dict[str, Callable[[Manifest], Outcome]] = {}
        self._core = client.CoreV1Api(api)
        self._api = api
        self._stop = threading.Event()
        self._shown: dict[str, str] = {}
        self._thread = threading.Thread(target=self._run, name="fake kubelet", daemon=True)
        self._address = 0

    def start(self) -> None:
        self._remove_left_over_nodes()
        taints = [{"key": LABEL, "value": self.name, "effect": "NoSchedule"}]
        body = {"metadata": {"name": self.name, "labels": {LABEL: self.name}}, "spec": {"taints": taints}}
        self._core.create_node(body)
        self._beat()
        self._thread.start()

    def _remove_left_over_nodes(self) -> None:
        """A run that was killed could not take its node away."""
        for node in self._core.list_node(label_selector=LABEL).items:
            if datetime.now(UTC) - node.metadata.creation_timestamp > timedelta(minutes=15):
                self._core.delete_node(node.metadata.name)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(10)
        # Without a kubelet nobody would confirm their end, and their namespaces would wait for it.
        for pod in self._pods():
            metadata = pod["metadata"]
            self._core.delete_namespaced_pod(metadata["name"], metadata["namespace"], grace_period_seconds=0)
        self._core.delete_node(self.name)

    def placement(self) -> Manifest:
        """What a pod needs to land here."""
        return {"nodeSelector": {LABEL: self.name}, "tolerations": [{"operator": "Exists"}]}

    def _beat(self) -> None:
        now = timestamp()
        amounts = {"cpu": "64", "memory": "256Gi", "pods": "500", "ephemeral-storage": "1Ti"}
        conditions = [
            {"type": kind, "status": status, "reason": "Fake", "lastHeartbeatTime": now}
            for kind, status in (("Ready", "True"), ("MemoryPressure", "False"), ("DiskPressure", "False"))
        ]
        body = {"status": {"capacity": amounts, "allocatable": amounts, "conditions": conditions}}
        self._core.patch_node_status(self.name, body)

    def _run(self) -> None:
        beaten = time.monotonic()
        while not self._stop.wait(PERIOD_SECONDS):
            try:
                if time.monotonic() - beaten > HEARTBEAT_SECONDS:
                    self._beat()
                    beaten = time.monotonic()
                self._round()
            except (ApiException, OSError):
                continue

    def _round(self) -> None:
        for pod in self._pods():
            metadata = pod["metadata"]
            if "deletionTimestamp" in metadata:
                self._core.delete_namespaced_pod(metadata["name"], metadata["namespace"], grace_period_seconds=0)
                continue
            choose = self.outcomes.get(metadata["namespace"])
            outcome: Outcome = "ready" if choose is None else choose(pod)
            if self._shown.get(metadata["uid"]) != outcome:
                self._show(pod, outcome)
                self._shown[metadata["uid"]] = outcome

    def _pods(self) -> list[Manifest]:
        listed = self._core.list_pod_for_all_namespaces(field_selector=f"spec.nodeName={self.name}")
        found: list[Manifest] = self._api.sanitize_for_serialization(listed)["items"]
        return found

    def _show(self, pod: Manifest, outcome: Outcome) -> None:
        now = timestamp()
        ready = "True" if outcome == "ready" else "False"
        container = pod["spec"]["containers"][0]
        before_fetched = outcome.startswith("fetch")
        if "podIP" not in pod["status"]:
            self._address += 1
        address = pod["status"].get("podIP", f"10.251.{self._address // 250}.{self._address % 250 + 1}")
        states: dict[Outcome, Manifest] = {
            "ready": {"running": {"startedAt": now}},
            "running": {"running": {"startedAt": now}},
            "pulling": {"waiting": {"reason": "ContainerCreating"}},
            "pull-failed": {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}},
            "crashing": {"waiting": {"reason": "CrashLoopBackOff"}},
            "oom": {"waiting": {"reason": "CrashLoopBackOff"}},
        }
        state = {"waiting": {"reason": "PodInitializing"}} if before_fetched else states[outcome]
        ended = {"startedAt": now, "finishedAt": now, "exitCode": 1, "reason": "Error", "message": "no such folder"}
        last = {"crashing": ended, "oom": {**ended, "exitCode": 137, "reason": "OOMKilled"}}.get(outcome)
        status = {
            "phase": "Running" if outcome in ("ready", "running") else "Pending",
            "podIP": address,
            "podIPs": [{"ip": address}],
            "conditions": [
                {"type": kind, "status": status, "lastTransitionTime": now}
                for kind, status in (
                    ("PodScheduled", "True"),
                    ("Initialized", "False" if before_fetched else "True"),
                    ("ContainersReady", ready),
                    ("Ready", ready),
                )
            ],
            "containerStatuses": [
                {
                    "name": container["name"],
                    "image": container["image"],
                    "imageID": "",
                    "ready": outcome == "ready",
                    "started": outcome == "ready",
                    "restartCount": 0 if last is None else 3,
                    "state": state,
                    **({"lastState": {"terminated": last}} if last is not None else {}),
                }
            ],
            "initContainerStatuses": [_fetcher(init, outcome, now) for init in pod["spec"].get("initContainers", ())],
        }
        metadata = pod["metadata"]
        self._core.patch_namespaced_pod_status(metadata["name"], metadata["namespace"], {"status": status})

"""A node without a machine: a Node object whose pods this thread starts, fails and ends through the API, as a kubelet would.

The scheduler, the Deployment and EndpointSlice controllers, the garbage collector and the API server are real; only the kubelet's
part is played here, so that a pod's fate is a choice of the test and takes no seconds. The node has no OS label (DaemonSets stay
away) and a taint (other pods do too).
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from kubernetes import client

from pratique_operator import kinds
from pratique_operator.cluster import ApiCluster
from pratique_operator.errors import ConflictError, NotFoundError, OperatorError
from pratique_operator.kinds import Kind
from tests.integration.operator.changes import Watch

Manifest = dict[str, Any]
Outcome = Literal[
    "ready", "running", "pulling", "pull-failed", "crashing", "oom", "fetching", "fetch-failed", "fetch-again"
]
LABEL = "pratique.test/node"
NODE = Kind("v1", "Node", "nodes")
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
        self._cluster = ApiCluster(api, timeout_seconds=10)
        self._moved, self._stop = threading.Event(), threading.Event()
        self._pods = Watch(api, kinds.POD, fields=f"spec.nodeName={name}", changed=self._moved.set)
        self._shown: dict[str, str] = {}
        self._addresses: dict[str, str] = {}
        self._ended: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="fake kubelet", daemon=True)

    def start(self) -> None:
        self._remove_left_over_nodes()
        taints = [{"key": LABEL, "value": self.name, "effect": "NoSchedule"}]
        body = {"metadata": {"name": self.name, "labels": {LABEL: self.name}}, "spec": {"taints": taints}}
        self._cluster.create(NODE, "", {"apiVersion": "v1", "kind": "Node", **body})
        self._beat()
        self._pods.start()
        self._thread.start()

    def _remove_left_over_nodes(self) -> None:
        """A run that was killed could not take its node away."""
        for node in self._cluster.list(NODE, None, LABEL):
            created = datetime.fromisoformat(node["metadata"]["creationTimestamp"])
            if datetime.now(UTC) - created > timedelta(minutes=15):
                self._cluster.delete(NODE, "", node["metadata"]["name"], uid=node["metadata"]["uid"])

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(10)
        self._pods.stop()
        # Without a kubelet nobody would confirm their end, and their namespaces would wait for it.
        for pod in self._cluster.list(kinds.POD, None, fields=f"spec.nodeName={self.name}"):
            self._end(pod)
        self._cluster._call("DELETE", NODE.path(None, self.name))

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
        self._cluster.patch(NODE, "", self.name, body, subresource="status")

    def _run(self) -> None:
        beaten = time.monotonic()
        while not self._stop.is_set():
            # A test may choose another outcome at any time; looking at what is known costs the API server nothing.
            self._moved.wait(PERIOD_SECONDS)
            self._moved.clear()
            try:
                if time.monotonic() - beaten > HEARTBEAT_SECONDS:
                    self._beat()
                    beaten = time.monotonic()
                for pod in self._pods.objects():
                    self._look_after(pod)
            except OperatorError:
                continue

    def _look_after(self, pod: Manifest) -> None:
        metadata = pod["metadata"]
        uid = metadata["uid"]
        if uid in self._ended:
            return
        if "deletionTimestamp" in metadata:
            self._end(pod)
            self._ended.add(uid)
            return
        choose = self.outcomes.get(metadata["namespace"])
        outcome: Outcome = "ready" if choose is None else choose(pod)
        if self._shown.get(uid) != outcome:
            self._show(pod, outcome)
            self._shown[uid] = outcome

    def _end(self, pod: Manifest) -> None:
        metadata = pod["metadata"]
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
        body["preconditions"] = {"uid": metadata["uid"]}
        with suppress(NotFoundError, ConflictError):
            self._cluster._call("DELETE", kinds.POD.path(metadata["namespace"], metadata["name"]), body=body)

    def _address(self, uid: str) -> str:
        number = len(self._addresses) + 1
        return self._addresses.setdefault(uid, f"10.251.{number // 250}.{number % 250 + 1}")

    def _show(self, pod: Manifest, outcome: Outcome) -> None:
        now = timestamp()
        ready = "True" if outcome == "ready" else "False"
        container = pod["spec"]["containers"][0]
        before_fetched = outcome.startswith("fetch")
        address = self._address(pod["metadata"]["uid"])
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
        with suppress(NotFoundError):
            self._cluster.patch(
                kinds.POD, metadata["namespace"], metadata["name"], {"status": status}, subresource="status"
            )

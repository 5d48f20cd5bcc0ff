"""When to look again: tests read the API server itself, but only after its watches told that something moved there."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import urllib3
from kubernetes import client

from pratique_operator.cluster import ApiCluster
from pratique_operator.errors import OperatorError
from pratique_operator.kinds import Kind

Manifest = dict[str, Any]
T = TypeVar("T")
# One change comes as a burst of events.
COALESCE_SECONDS = 0.03
# Not everything a test waits for is told by a watch of ours.
LOOK_SECONDS_MAX = 0.4
WATCH_SECONDS = 300


class Changes:
    """Counts what watches tell, and lets a test wait for more."""

    def __init__(self) -> None:
        self._moved = threading.Condition()
        self.count = 0

    def tell(self) -> None:
        with self._moved:
            self.count += 1
            self._moved.notify_all()

    def wait(self, seen: int, seconds: float) -> None:
        """Until more has been told than ``seen``, but no longer than this."""
        with self._moved:
            self._moved.wait_for(lambda: self.count != seen, seconds)


CHANGES = Changes()


def eventually(read: Callable[[], T], *, timeout: float = 30.0, what: str = "it becomes true") -> T:
    """The first true value of ``read``, which is asked anew after every change; fails saying what it waited for."""
    deadline = time.monotonic() + timeout
    while True:
        seen = CHANGES.count
        value = read()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"Not within {timeout:.0f} s: {what}")
        time.sleep(COALESCE_SECONDS)
        CHANGES.wait(seen, LOOK_SECONDS_MAX)


class Watch:
    """The objects of one kind as the API server's watch tells them, in a thread. Every change is told to ``changed`` and ``CHANGES``."""

    def __init__(
        self, api: client.ApiClient, kind: Kind, *, selector: str = "", fields: str = "", changed: Callable[[], None]
    ) -> None:
        self._api, self._cluster = api, ApiCluster(api, timeout_seconds=10)
        self._kind, self._selector, self._fields = kind, selector, fields
        self._changed = changed
        self._lock = threading.Lock()
        self._objects: dict[str, Manifest] = {}
        self._stop = threading.Event()
        self._response: urllib3.BaseHTTPResponse | None = None
        self._thread = threading.Thread(target=self._run, name=f"watch of {kind.plural}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._response is not None:
            self._response.shutdown()  # type: ignore[attr-defined]
        self._thread.join(10)

    def objects(self) -> list[Manifest]:
        with self._lock:
            return list(self._objects.values())

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._follow(self._list())
            except (OperatorError, urllib3.exceptions.HTTPError, OSError, ValueError):
                self._stop.wait(0.2)

    def _list(self) -> str:
        query = {"labelSelector": self._selector, "fieldSelector": self._fields}
        found = self._cluster._call("GET", self._kind.path(None), query=query)
        with self._lock:
            self._objects = {item["metadata"]["uid"]: item for item in found["items"]}
        self._tell()
        version: str = found["metadata"]["resourceVersion"]
        return version

    def _follow(self, version: str) -> None:
        for event in self._events(version):
            if event["type"] == "ERROR":  # too old: list again
                return
            uid = event["object"]["metadata"]["uid"]
            with self._lock:
                if event["type"] == "DELETED":
                    self._objects.pop(uid, None)
                else:
                    self._objects[uid] = event["object"]
            self._tell()

    def _events(self, version: str) -> Iterator[Manifest]:
        self._response = response = self._api.rest_client.pool_manager.request(
            "GET",
            f"{self._api.configuration.host}{self._kind.path(None)}",
            fields={
                "watch": "1",
                "resourceVersion": version,
                "labelSelector": self._selector,
                "fieldSelector": self._fields,
                "timeoutSeconds": str(WATCH_SECONDS),
            },
            headers={"Accept": "application/json", **self._cluster._authorization()},
            timeout=urllib3.Timeout(connect=5, read=WATCH_SECONDS + 10),
            retries=False,
            preload_content=False,
        )
        try:
            rest = b""
            for chunk in response.stream(None):
                if self._stop.is_set():
                    return
                *lines, rest = (rest + chunk).split(b"\n")
                yield from (json.loads(line) for line in lines if line)
        finally:
            response.close()

    def _tell(self) -> None:
        self._changed()
        CHANGES.tell()

"""Where release records come from: asked of one verified pod, the way it is asked for its verdict (no answer: nothing is concluded), or
read from what a revision's pods read."""

import json
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

from pratique_contract import constants
from pratique_contract.canonical import JSON_ERRORS
from pratique_contract.record import RECORD_BYTES_MAX, RecordError, ReleaseRecord
from pratique_operator import kinds, names
from pratique_operator.cluster import Cluster
from pratique_operator.config import OperatorConfig
from pratique_operator.errors import ApiError, UnavailableError
from pratique_operator.pods import pod_http
from pratique_operator.pods.facts import PodFacts
from pratique_operator.release.review import RecordOf
from pratique_operator.release.trust import (
    HTTP_ACCEPTED,
    HTTP_OK,
    Children,
    Offer,
    RecordAnswer,
    Recorded,
    choose_witness,
    declared_of,
    judge_answer,
    unrecorded,
)

Manifest = dict[str, Any]
ReadRecord = Callable[[str, PodFacts], RecordAnswer]


def read_direct(*, timeout_seconds: float) -> ReadRecord:
    """Read from the pod's own address: how the operator does it inside the cluster."""

    def read(_namespace: str, pod: PodFacts) -> RecordAnswer:
        path = constants.RECORD_API_PATH
        try:
            # One byte more than a record may have shows that it is too large.
            status, body = pod_http.get(pod.address, path, seconds_max=timeout_seconds, bytes_max=RECORD_BYTES_MAX + 1)
        except UnavailableError:
            return RecordAnswer(None)
        return RecordAnswer(status, body.decode(errors="replace"))

    return read


def read_through(cluster: Cluster, *, timeout_seconds: float) -> ReadRecord:
    """Read through the API server's pod proxy: for an operator that runs outside the cluster."""

    def read(namespace: str, pod: PodFacts) -> RecordAnswer:
        path, port = constants.RECORD_API_PATH, constants.MANAGEMENT_PORT
        try:
            body = cluster.read_pod(namespace, pod.name, port, path, timeout_seconds=timeout_seconds)
        except UnavailableError:
            return RecordAnswer(None)
        except ApiError as error:
            return RecordAnswer(error.status, json.dumps({"message": str(error)}))
        # The proxy does not say which of the good statuses it was; only "not yet" is a message.
        return RecordAnswer(HTTP_ACCEPTED if _is_message(body) else HTTP_OK, body)

    return read


def _is_message(body: str) -> bool:
    try:
        value = json.loads(body)
    except JSON_ERRORS:
        return False
    return isinstance(value, dict) and set(value) == {"message"}


def record_reader(cluster: Cluster, config: OperatorConfig) -> ReadRecord:
    """The reader the configuration asks for."""
    timeout = config.verdict_timeout_seconds
    if config.verdict_access == "Proxy":
        return read_through(cluster, timeout_seconds=timeout)
    return read_direct(timeout_seconds=timeout)


def observe_offers(
    namespace: str,
    deployments: Mapping[str, Manifest],
    recorded: Mapping[str, Recorded],
    pods: Iterable[PodFacts],
    read_record: ReadRecord,
) -> tuple[Offer, ...]:
    """Ask one verified pod of each revision that has no kept record for its own."""
    found, pods = [], list(pods)
    for revision, declared in sorted(unrecorded(deployments, recorded).items()):
        pod = choose_witness(pod for pod in pods if pod.revision == revision)
        if pod is None:
            continue
        pinned = deployments[revision]["metadata"].get("annotations", {}).get(constants.ANNOTATION_FINGERPRINT)
        found.append(
            judge_answer(
                read_record(namespace, pod),
                revision=revision,
                declared=declared,
                pod=pod,
                pinned=pinned,
                memory=recorded.get(declared),
            )
        )
    return tuple(found)


def records_by_revision(
    service: str, children: Children, deployments: Mapping[str, Manifest], recorded: Mapping[str, Recorded]
) -> RecordOf:
    """The record each revision serves with: from what its own pods read, never from what a ConfigMap of the user holds by now."""

    @cache
    def record_of(revision: str) -> ReleaseRecord | None:
        declared = declared_of(deployments[revision]) if revision in deployments else None
        if declared is not None:
            return recorded[declared].record if declared in recorded else None
        config_map = children.get((kinds.CONFIG_MAP.kind, names.revision_child(service, revision)), {})
        try:
            return ReleaseRecord.from_json(config_map.get("data", {}).get(constants.RECORD_FILE, ""))
        except RecordError:
            return None

    return record_of

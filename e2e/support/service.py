"""Questions about one InferenceService, and the official OpenAI client pointed at it."""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
from kubernetes import client, config
from openai import OpenAI

from e2e.support.kube import condition, eventually, get, kubeconfig, port_forward

KIND = "inferenceservice"
CHILD_KINDS = (
    "deployments",
    "services",
    "configmaps",
    "serviceaccounts",
    "poddisruptionbudgets",
    "pods",
    "replicasets",
    "endpointslices",
)


def read(name: str, namespace: str) -> dict[str, Any]:
    resource: dict[str, Any] = get(KIND, name, namespace=namespace)
    return resource


def is_ready(name: str, namespace: str) -> dict[str, Any] | None:
    """The resource when Ready is True for its current generation, else None."""
    resource = read(name, namespace)
    status = resource.get("status") or {}
    ready = condition(resource, "Ready")
    current = status.get("observedGeneration") == resource["metadata"]["generation"]
    return resource if current and ready is not None and ready["status"] == "True" else None


def wait_ready(name: str, namespace: str, *, timeout: float = 120.0) -> dict[str, Any]:
    try:
        return eventually(lambda: is_ready(name, namespace), timeout=timeout, what=f"{name} is Ready")
    except AssertionError as error:
        raise AssertionError(f"{error}\nstatus: {read(name, namespace).get('status')}") from error


def reason_of(name: str, namespace: str, kind: str = "Ready") -> str | None:
    found = condition(read(name, namespace), kind)
    return None if found is None else str(found["reason"])


def ready_endpoints(service: str, namespace: str) -> list[str]:
    """Addresses that a Service would send a request to now."""
    slices = get("endpointslices", namespace=namespace, selector=f"kubernetes.io/service-name={service}")
    return [
        address
        for piece in slices
        for endpoint in piece.get("endpoints") or []
        if (endpoint.get("conditions") or {}).get("ready")
        for address in endpoint["addresses"]
    ]


def children(namespace: str, service: str) -> list[str]:
    """Every object in the namespace that belongs to the service, as ``kind/name``."""
    found = []
    for kind in CHILD_KINDS:
        for item in get(kind, namespace=namespace):
            labels = item["metadata"].get("labels") or {}
            owners = [owner.get("name", "") for owner in item["metadata"].get("ownerReferences") or []]
            if labels.get("serving.pratique.dev/service") == service or any(
                owner == service or owner.startswith(f"{service}-") for owner in owners
            ):
                found.append(f"{kind}/{item['metadata']['name']}")
    return sorted(found)


@contextmanager
def openai_client(name: str, namespace: str) -> Iterator[OpenAI]:
    """The official client on a port-forward to the entry Service."""
    with (
        port_forward(f"svc/{name}", 80, namespace=namespace) as url,
        OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0, timeout=60.0) as api,
    ):
        yield api


@contextmanager
def through_the_service(name: str, namespace: str) -> Iterator[httpx.Client]:
    """An HTTP client that reaches the entry Service through the API server's proxy: it chooses among ready endpoints as a
    client in the cluster would, and answers 503 when there are none."""
    settings = client.Configuration()
    config.load_kube_config(config_file=str(kubeconfig()), client_configuration=settings)
    tls = ssl.create_default_context(cafile=settings.ssl_ca_cert)
    tls.load_cert_chain(settings.cert_file, settings.key_file)
    base = f"{settings.host}/api/v1/namespaces/{namespace}/services/{name}:http/proxy"
    with httpx.Client(base_url=base, verify=tls, timeout=30.0) as http:
        yield http

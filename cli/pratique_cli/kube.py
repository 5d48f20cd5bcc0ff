"""The cluster as the command line needs it: read a service, and open a connection to one of its verified pods.

Uses the current kubeconfig context, or the pod's own account inside a cluster. Errors are sentences.
"""

import json
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Final, TypeVar

from pratique_cli.errors import CliError, missing_extra
from pratique_cli.names import require_names
from pratique_contract import constants
from pratique_contract.canonical import JSON_ERRORS
from pratique_contract.sources import cache_folder, is_fetched

REQUEST_SECONDS_MAX: Final = 15.0
LIST_PAGE: Final = 500
MESSAGE_CHARACTERS_MAX: Final = 400
_OWN_NAMESPACE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

T = TypeVar("T")


class Cluster:
    """``context`` None is the current one. Raises ``CliError`` when there is no usable configuration."""

    def __init__(self, *, context: str | None = None) -> None:
        try:
            from kubernetes import client, config
            from kubernetes.config.config_exception import ConfigException
        except ImportError as error:
            raise missing_extra("cli", error) from error
        self._client = client
        try:
            config.load_kube_config(context=context)
            self.namespace = self._context_namespace(config, context)
        except Exception as error:  # noqa: BLE001 - what the library raises for a file that is none depends on what stands in it
            try:
                config.load_incluster_config()
            except ConfigException:
                why = str(error) if isinstance(error, (ConfigException, OSError)) else f"it is none ({_why(error)})"
                raise CliError(f"There is no usable kubeconfig: {why}") from error
            self.namespace = _own_namespace()

    def get_service(self, name: str, namespace: str) -> dict[str, Any]:
        """The InferenceService; raises ``CliError`` when it is not there."""
        require_names(service=name, namespace=namespace)
        api = self._client.CustomObjectsApi()
        found: dict[str, Any] = self._call(
            f"InferenceService {namespace}/{name}",
            lambda: api.get_namespaced_custom_object(
                constants.GROUP,
                constants.VERSION,
                namespace,
                constants.PLURAL,
                name,
                _request_timeout=REQUEST_SECONDS_MAX,
            ),
        )
        return found

    def get_config_map(self, name: str, namespace: str) -> dict[str, str]:
        """The data of a ConfigMap; raises ``CliError`` when it is not there."""
        require_names(ConfigMap=name, namespace=namespace)
        api = self._client.CoreV1Api()
        found = self._call(
            f"ConfigMap {namespace}/{name}",
            lambda: api.read_namespaced_config_map(name, namespace, _request_timeout=REQUEST_SECONDS_MAX),
        )
        return dict(found.data or {})

    def patch_service(self, name: str, namespace: str, body: dict[str, Any]) -> bool:
        """JSON merge patch of the InferenceService; False when ``body`` names a resourceVersion that is not the newest."""
        require_names(service=name, namespace=namespace)
        api = self._client.CustomObjectsApi()

        def patch() -> bool:
            try:
                api.patch_namespaced_custom_object(
                    constants.GROUP,
                    constants.VERSION,
                    namespace,
                    constants.PLURAL,
                    name,
                    body,
                    field_manager="pratique",
                    _request_timeout=REQUEST_SECONDS_MAX,
                )
            except self._client.exceptions.ApiException as error:
                if error.status == 409:
                    return False
                raise
            return True

        return self._call(f"InferenceService {namespace}/{name}", patch)

    def ready_pod(self, name: str, namespace: str) -> tuple[str, int]:
        """A pod behind the entry Service that is ready, and its API port."""
        require_names(service=name, namespace=namespace)
        api = self._client.DiscoveryV1Api()
        slices = self._call(
            f"The endpoints of {namespace}/{name}",
            lambda: api.list_namespaced_endpoint_slice(
                namespace, label_selector=f"kubernetes.io/service-name={name}", _request_timeout=REQUEST_SECONDS_MAX
            ),
        )
        for item in slices.items:
            ports = {port.name: port.port for port in item.ports or []}
            port = ports.get(constants.API_PORT_NAME) or constants.API_PORT
            for endpoint in item.endpoints or []:
                if endpoint.conditions.ready and endpoint.target_ref is not None:
                    return str(endpoint.target_ref.name), int(port)
        self.get_service(name, namespace)  # says so when there is none
        raise CliError(f"No verified pod serves {namespace}/{name} now; pratique status {name} -n {namespace} says why")

    def any_pod(self, name: str, namespace: str) -> str:
        """A pod of the service that runs: a verified one before one that is refused."""
        require_names(service=name, namespace=namespace)
        api = self._client.CoreV1Api()
        pods = self._call(
            f"The pods of {namespace}/{name}",
            lambda: api.list_namespaced_pod(
                namespace, label_selector=f"{constants.LABEL_SERVICE}={name}", _request_timeout=REQUEST_SECONDS_MAX
            ),
        ).items
        running = [pod for pod in pods if pod.status.phase == "Running" and pod.metadata.deletion_timestamp is None]
        if not running:
            self.get_service(name, namespace)  # says so when there is none
            raise CliError(f"No pod of {namespace}/{name} runs; pratique status {name} -n {namespace} says why")
        return str(min(running, key=lambda pod: (not _is_ready(pod), pod.metadata.name)).metadata.name)

    def cache_folders_in_use(self, namespaces: Sequence[str] | None) -> frozenset[str]:
        """Names of the cache's folders that an InferenceService, a Deployment or a pod of these namespaces (None: of all) names. A pod that
        serves needs its folder as long as it lives: an engine or container that is started again reads it again."""
        core, apps, custom = self._client.CoreV1Api(), self._client.AppsV1Api(), self._client.CustomObjectsApi()
        resource = (constants.GROUP, constants.VERSION)
        found: set[str] = set()
        for namespace in namespaces or (None,):
            if namespace is not None:
                require_names(namespace=namespace)
            place, where = ((), "of all namespaces") if namespace is None else ((namespace,), f"of {namespace}")
            pods = core.list_pod_for_all_namespaces if namespace is None else core.list_namespaced_pod
            deployments = (
                apps.list_deployment_for_all_namespaces if namespace is None else apps.list_namespaced_deployment
            )
            services = custom.list_cluster_custom_object if namespace is None else custom.list_namespaced_custom_object
            for pod in self._pages(f"The pods {where}", partial(pods, *place)):
                if (pod.get("status") or {}).get("phase") not in (
                    "Succeeded",
                    "Failed",
                ):  # these never start anything again
                    found |= _sub_paths(pod["spec"])
            for deployment in self._pages(f"The Deployments {where}", partial(deployments, *place)):
                found |= _sub_paths(deployment["spec"]["template"]["spec"])
            call = partial(services, *resource, *place, constants.PLURAL)
            for service in self._pages(f"The InferenceServices {where}", call):
                found |= _sources(service.get("spec"))
        return frozenset(found)

    def _pages(self, what: str, call: Callable[..., Any]) -> Iterator[dict[str, Any]]:
        """Every object of a list as JSON, some hundred at a time."""
        more: dict[str, Any] = {}
        while True:
            answer = self._call(
                what,
                lambda: (
                    call(
                        limit=LIST_PAGE,
                        _request_timeout=REQUEST_SECONDS_MAX,
                        _preload_content=False,
                        **more,  # noqa: B023 - called at once
                    ).data
                ),
            )
            page = json.loads(answer)
            yield from page["items"]
            token = page["metadata"].get("continue")
            if not token:
                return
            more = {"_continue": token}

    def request_pod(
        self, pod: str, port: int, namespace: str, method: str, path: str, body: bytes
    ) -> tuple[int, bytes]:
        """One HTTP request to a pod's port through the API server's proxy: status and body, whatever the status."""
        require_names(pod=pod, namespace=namespace)
        client = self._client.ApiClient()
        token = client.configuration.auth_settings().get("BearerToken")
        headers = {"Content-Type": "application/json", **({"Authorization": str(token["value"])} if token else {})}
        url = f"{client.configuration.host}/api/v1/namespaces/{namespace}/pods/{pod}:{port}/proxy{path}"
        response = self._call(
            f"Pod {namespace}/{pod}",
            lambda: client.rest_client.pool_manager.request(
                method, url, body=body or None, headers=headers, timeout=REQUEST_SECONDS_MAX, retries=False
            ),
        )
        return int(response.status), bytes(response.data)

    def connect(self, pod: str, port: int, namespace: str) -> socket.socket:
        """A connection to a port of a pod, forwarded by the API server. Closing the socket ends it."""
        require_names(pod=pod, namespace=namespace)
        from kubernetes.stream import portforward

        api = self._client.CoreV1Api()
        forward = self._call(
            f"A connection to pod {namespace}/{pod}",
            lambda: portforward(api.connect_get_namespaced_pod_portforward, pod, namespace, ports=str(port)),
        )
        connection: socket.socket = forward.socket(port)
        connection.setblocking(True)
        return connection

    def _context_namespace(self, config: Any, context: str | None) -> str:
        contexts, active = config.list_kube_config_contexts()
        chosen = active if context is None else next(c for c in contexts if c["name"] == context)
        return str(chosen["context"].get("namespace") or "default")

    def _call(self, what: str, call: Callable[[], T]) -> T:
        import urllib3

        try:
            return call()
        except self._client.exceptions.ApiException as error:
            if error.status == 404:
                raise CliError(f"{what} does not exist") from error
            # The client packs the whole failed handshake of a port forward into the reason.
            reason = str(error.reason).split(" -+-+- ")[0]
            status = f"HTTP {error.status} " if error.status else ""
            raise CliError(f"{what} cannot be had: {status}{reason}{_told(error)}") from error
        except (urllib3.exceptions.HTTPError, OSError) as error:
            host = self._client.ApiClient().configuration.host
            raise CliError(f"The cluster at {host} does not answer: {_why(error)}") from error


def _told(error: Any) -> str:
    """Why the API server refused, in its own words: they name the account and the right it lacks."""
    if error.status == 401:
        return ": the credentials of the kubeconfig are wrong, or have expired"
    try:
        message = str(json.loads(error.body)["message"])
    except (*JSON_ERRORS, TypeError, KeyError):
        return ""
    return f": {message[:MESSAGE_CHARACTERS_MAX]}" if error.status == 403 else ""


def _own_namespace() -> str:
    """Inside a cluster: the pod's own."""
    try:
        return _OWN_NAMESPACE.read_text(encoding="utf-8").strip() or "default"
    except OSError:
        return "default"


def _sub_paths(pod: Mapping[str, Any]) -> set[str]:
    """The first part of what a pod's containers mount of a volume: the operator mounts fetched folders one by one."""
    containers = [*(pod.get("initContainers") or ()), *(pod.get("containers") or ())]
    mounts = [mount for container in containers for mount in container.get("volumeMounts") or ()]
    return {part for mount in mounts if (part := str(mount.get("subPath") or "").strip("/").partition("/")[0])}


def _sources(value: Any) -> set[str]:
    """The folders of every source that a service names, wherever in it: the model, adapters, the tokenizer."""
    if isinstance(value, list):
        return set().union(*map(_sources, value))
    if not isinstance(value, dict):
        return set()
    found = set().union(*map(_sources, value.values()))
    uri, revision = value.get("uri"), value.get("revision")
    if isinstance(uri, str) and is_fetched(uri):
        found.add(PurePosixPath(cache_folder(uri, revision)).name)
    return found


def _is_ready(pod: Any) -> bool:
    return any(c.type == "Ready" and c.status == "True" for c in pod.status.conditions or [])


def _why(error: Exception) -> str:
    """What went wrong in the client's words, without its account of the object and the address it happened to."""
    cause = getattr(error, "reason", None) or error
    line = (str(cause).splitlines() or [""])[0]
    if line.startswith("HTTP"):
        line = line.partition("): ")[2] or line
    return line[:200] or type(cause).__name__

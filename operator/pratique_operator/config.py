"""What the person who installs the operator decides, read once from the environment; every other module gets it as an argument."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

from pratique_operator.network import NetworkAccess, parse_access

_Text = TypeVar("_Text", bound=str)
_TRUE: Final = frozenset({"1", "true", "yes", "on"})
_FALSE: Final = frozenset({"", "0", "false", "no", "off"})


class ConfigError(ValueError):
    """A setting of the operator itself is wrong; the message names the variable."""


@dataclass(frozen=True)
class OperatorConfig:
    """Operator settings. Seconds are wall-clock; ``watch_namespaces`` empty means the whole cluster.

    ``operator_name`` selects the services labelled with it; empty: those without the label, so that two operators can share a cluster.
    ``require_signature``: serve signed releases only; ``signature_keys`` (PEM) are keys one of which must have signed every one.
    ``network`` None: no NetworkPolicy is made.
    ``verdict_access``: ``Direct`` reads a pod's verdict from its address (inside the cluster), ``Proxy`` through the API server.
    """

    server_image: str = ""
    image_pull_policy: Literal["IfNotPresent", "Always", "Never"] = "IfNotPresent"
    allow_file_sources: bool = False
    require_signature: bool = False
    signature_keys: str = ""
    watch_namespaces: tuple[str, ...] = ()
    operator_name: str = ""
    network: NetworkAccess | None = None
    verdict_access: Literal["Direct", "Proxy"] = "Direct"
    resync_seconds: float = 300.0
    retry_seconds: float = 10.0
    reference_seconds: float = 20.0
    verdict_poll_seconds: float = 3.0
    progress_seconds: float = 10.0
    verdict_timeout_seconds: float = 3.0
    verdict_workers: int = 8
    request_timeout_seconds: float = 15.0
    reconcile_workers: int = 4
    health_port: int = 8080
    metrics_port: int = 9090
    log_format: Literal["json", "text"] = "json"


def read_config(environment: Mapping[str, str]) -> OperatorConfig:
    """Build the configuration; raises ``ConfigError`` for a value that cannot be meant."""
    default = OperatorConfig()
    in_cluster = "KUBERNETES_SERVICE_HOST" in environment
    return OperatorConfig(
        server_image=environment.get("PRATIQUE_SERVER_IMAGE", default.server_image),
        image_pull_policy=_choice(
            environment, "PRATIQUE_IMAGE_PULL_POLICY", default.image_pull_policy, ("IfNotPresent", "Always", "Never")
        ),
        allow_file_sources=_flag(environment, "PRATIQUE_ALLOW_FILE_SOURCES", default=default.allow_file_sources),
        require_signature=_flag(environment, "PRATIQUE_REQUIRE_SIGNATURE", default=default.require_signature),
        signature_keys=environment.get("PRATIQUE_SIGNATURE_KEYS", default.signature_keys).strip(),
        watch_namespaces=tuple(
            filter(None, environment.get("PRATIQUE_WATCH_NAMESPACES", "").replace(",", " ").split())
        ),
        operator_name=environment.get("PRATIQUE_OPERATOR_NAME", default.operator_name),
        network=_network(environment.get("PRATIQUE_NETWORK_POLICY", "")),
        verdict_access=_choice(
            environment, "PRATIQUE_VERDICT_ACCESS", "Direct" if in_cluster else "Proxy", ("Direct", "Proxy")
        ),
        resync_seconds=_seconds(environment, "PRATIQUE_RESYNC_SECONDS", default.resync_seconds),
        retry_seconds=_seconds(environment, "PRATIQUE_RETRY_SECONDS", default.retry_seconds),
        reference_seconds=_seconds(environment, "PRATIQUE_REFERENCE_SECONDS", default.reference_seconds),
        verdict_poll_seconds=_seconds(environment, "PRATIQUE_VERDICT_POLL_SECONDS", default.verdict_poll_seconds),
        health_port=_port(environment, "PRATIQUE_HEALTH_PORT", default.health_port),
        metrics_port=_port(environment, "PRATIQUE_METRICS_PORT", default.metrics_port),
        log_format=_choice(environment, "PRATIQUE_LOG_FORMAT", "json" if in_cluster else "text", ("json", "text")),
    )


def _choice(environment: Mapping[str, str], name: str, default: _Text, choices: tuple[_Text, ...]) -> _Text:
    value = environment.get(name)
    if value is None:
        return default
    for choice in choices:
        if choice == value:
            return choice
    raise ConfigError(f"{name} is {value!r}; it must be one of {', '.join(choices)}")


def _flag(environment: Mapping[str, str], name: str, *, default: bool) -> bool:
    value = environment.get(name)
    if value is None:
        return default
    if value.lower() in _TRUE | _FALSE:
        return value.lower() in _TRUE
    raise ConfigError(f"{name} is {value!r}; it must be true or false")


def _seconds(environment: Mapping[str, str], name: str, default: float) -> float:
    try:
        value = float(environment.get(name, default))
    except ValueError as error:
        raise ConfigError(f"{name} is not a number of seconds") from error
    if not 0 < value < 86400:
        raise ConfigError(f"{name} is {value}; it must be between 0 and 86400 seconds")
    return value


def _network(text: str) -> NetworkAccess | None:
    try:
        return parse_access(text)
    except ValueError as error:
        raise ConfigError(f"PRATIQUE_NETWORK_POLICY cannot be meant: {error}") from error


def _port(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name, str(default))
    if not text.isdecimal() or not 0 <= int(text) < 65536:
        raise ConfigError(f"{name} is {text!r}; it must be a port number, or 0 for none")
    return int(text)

"""Limits of the server that are not part of the serving document, and the reading of that document.

Every queue, wait, loop and body has its limit here, by name. Tests pass smaller ones.
"""

from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from pratique_contract import ServingSpec


class ConfigError(Exception):
    """The serving document cannot be used; the message is a sentence a person can act on."""


@dataclass(frozen=True, kw_only=True)
class ApiLimits:
    """Bounds on one client and on everything in flight. Times in seconds, sizes as named."""

    in_flight_max: int = 512
    header_seconds_max: float = 10.0
    keep_alive_seconds: float = 30.0
    body_seconds_max: float = 30.0
    json_depth_max: int = 32
    request_id_length_max: int = 128
    messages_max: int = 4096
    stop_strings_max: int = 16
    stop_string_length_max: int = 256
    logit_bias_max: int = 1024
    # A stream whose reader leaves this much unread, or takes nothing for this long, is cut; nothing else is.
    unread_bytes_max: int = 256 * 1024
    stall_seconds_max: float = 30.0
    comment_seconds: float = 10.0
    cancel_seconds_max: float = 5.0
    text_workers: int = 2


@dataclass(frozen=True, kw_only=True)
class EngineLimits:
    """How the process watches its engine and what it proved, and restarts it."""

    poll_seconds: float = 0.25
    # Above this age of the engine's last sign of life the pod is not ready. Well over a long prefill step on a busy host.
    heartbeat_seconds_max: float = 30.0
    # Above this age it is taken for hung and replaced.
    silence_seconds_max: float = 120.0
    restarts_max: int = 3
    restart_backoff_seconds: float = 1.0
    # A restart that held this long is forgiven.
    restart_window_seconds: float = 600.0
    # After a gate that ran out of time: a slow host says nothing about the release, so it is tried again.
    gate_again_seconds: float = 10.0
    # Under TrustFirst: how often a pod without a record looks for the one that was kept.
    recorded_poll_seconds: float = 2.0


def load_serving_spec(path: Path) -> ServingSpec:
    """Read the serving document. Raises ``ConfigError`` naming the first wrong field."""
    try:
        return ServingSpec.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"The serving document {path} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "document"
        raise ConfigError(f"The serving document {path} is not valid at {field}: {first['msg']}") from error

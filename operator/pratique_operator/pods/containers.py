"""What one container's state says is wrong with it, in a reason code and a sentence. Pure.

A process that ends leaves its last word: the gate and the fetching container write ``Reason: sentence``, anything else leaves the end
of its log. A reason told like that stands while the kubelet waits and while the next attempt runs, until that one says otherwise:
between two attempts nothing is known that would make it untrue.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from pratique_contract import Reason
from pratique_contract.reasons import DOWNLOAD_REASONS, GATE_REASONS

Manifest = dict[str, Any]

MESSAGE_CHARS_MAX: Final = 400
RESTARTS_MIN: Final = 2
# A fetch that failed and now runs longer than the attempt before has got further; within these bounds, so that neither a refusal at once
# (a wrong token) comes and goes with every attempt, nor the end of a long download is told for hours.
RETRY_TRUSTED_MIN: Final = timedelta(seconds=60)
RETRY_TRUSTED_MAX: Final = timedelta(seconds=600)

_PULL_REASONS: Final = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "ImageInspectError",
        "RegistryUnavailable",
    }
)
_START_REASONS: Final = frozenset(
    {"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "StartError"}
)


@dataclass(frozen=True)
class Finding:
    """A reason code and a sentence."""

    reason: Reason
    message: str


def find_server_trouble(container: Manifest) -> Finding | None:
    """What is wrong with the serving container; None when nothing is, as far as the kubelet knows."""
    blocked = _find_start_trouble(container)
    if blocked is not None:
        return blocked
    state = container.get("state", {})
    ended = state.get("terminated") or container.get("lastState", {}).get("terminated")
    if ended is None:
        return None
    if ended.get("reason") == "OOMKilled":
        return Finding(Reason.OUT_OF_MEMORY, "the container was killed because it used more memory than its limit")
    told = split_reason(ended.get("message", ""), GATE_REASONS)
    # The startup probe passes with the verdict: a container that has started has said otherwise since.
    if told is not None and not container.get("started"):
        return told
    # A container that runs again for a moment between two crashes is still crashing; one restart may have any cause.
    again = container.get("restartCount", 0) >= RESTARTS_MIN
    if again or _backs_off(container) or "terminated" in state:
        return Finding(Reason.CRASH_LOOPING, clip(f"the server exited with {_last_words(ended)}"))
    return None


def find_fetcher_trouble(container: Manifest, *, now: datetime) -> Finding | None:
    """What is wrong with the container that fetches; None once an attempt succeeded or runs longer than the failed one did."""
    blocked = _find_start_trouble(container)
    if blocked is not None:
        return blocked
    state = container.get("state", {})
    ended = state.get("terminated") or container.get("lastState", {}).get("terminated")
    if ended is None or ended.get("exitCode") == 0:
        return None
    running = state.get("running")
    if running is not None and now - (_time(running.get("startedAt")) or now) >= _trusted_after(ended):
        return None
    again = "" if running is None else " (the next attempt runs)"
    if ended.get("reason") == "OOMKilled":
        text = "the fetching container was killed because it used more memory than its limit"
        return Finding(Reason.OUT_OF_MEMORY, f"{text}{again}")
    told = split_reason(ended.get("message", ""), DOWNLOAD_REASONS)
    if told is not None:
        return Finding(told.reason, clip(f"{told.message}{again}"))
    return Finding(Reason.DOWNLOAD_FAILED, clip(f"the fetching container exited with {_last_words(ended)}{again}"))


def _trusted_after(failed: Manifest) -> timedelta:
    started, finished = _time(failed.get("startedAt")), _time(failed.get("finishedAt"))
    lasted = timedelta(0) if started is None or finished is None else finished - started
    return min(max(lasted, RETRY_TRUSTED_MIN), RETRY_TRUSTED_MAX)


def _find_start_trouble(container: Manifest) -> Finding | None:
    waiting = container.get("state", {}).get("waiting", {})
    if waiting.get("reason") in _PULL_REASONS:
        image = container.get("image", "the image")
        return Finding(Reason.IMAGE_PULL_FAILED, clip(f"{image}: {waiting.get('message') or waiting['reason']}"))
    if waiting.get("reason") in _START_REASONS:
        return Finding(
            Reason.CRASH_LOOPING, clip(f"the container cannot start: {waiting.get('message') or waiting['reason']}")
        )
    return None


def _backs_off(container: Manifest) -> bool:
    return bool(container.get("state", {}).get("waiting", {}).get("reason") == "CrashLoopBackOff")


def split_reason(text: str, known: frozenset[Reason]) -> Finding | None:
    """``Reason: sentence`` as the pod's own processes write it; None for any other text."""
    code, separator, sentence = text.partition(":")
    if not separator or code.strip() not in known:
        return None
    return Finding(Reason(code.strip()), clip(sentence))


def _last_words(ended: Manifest) -> str:
    """Exit code and why: of a log's end, the last line says most."""
    lines = [line for line in str(ended.get("message") or "").splitlines() if line.strip()]
    why = lines[-1] if lines else ended.get("reason") or "no reason given"
    return f"code {ended.get('exitCode')}: {why}"


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def clip(text: str) -> str:
    """One line that fits into a condition."""
    flat = " ".join("".join(char if char.isprintable() else " " for char in str(text)).split())
    return flat if len(flat) <= MESSAGE_CHARS_MAX else f"{flat[: MESSAGE_CHARS_MAX - 1]}…"

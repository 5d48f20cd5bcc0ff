"""What a fault is: one change to an approved release, and the reason the gate must give for it.

The reason is written by thinking about the change, before anything runs. ``arrange`` makes the change in a ``Scene`` (see ``scene``);
the functions below build the usual kinds of ``arrange``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pratique_contract.reasons import Reason
from pratique_server.engine.torch_engine.engine import TorchEngine
from tests.mutation.scene import Judged, Scene
from tests.support.broken_streams import Events
from tests.support.mutations import Mutation

Arrange = Callable[[Scene], object]
Act = Callable[[Judged], object]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """``part`` is the manifest part, or the place, that is wrong. ``bug`` names a public report of the kind. ``base`` is the approved
    release it departs from (``releases.BASES``)."""

    part: str
    name: str
    reason: Reason
    arrange: Arrange
    bug: str = ""
    base: str = "tiny"

    @property
    def id(self) -> str:
        return f"{self.part}: {self.name}"


@dataclass(frozen=True, kw_only=True)
class Variation:
    """A change that is no fault, or one that nobody can see. ``why`` says why. ``act`` looks at what comes after the verdict, ``status``
    is what a user's request gets then. ``refused`` is the reason, for a change without effect that is refused all the same."""

    name: str
    why: str
    arrange: Arrange
    base: str = "tiny"
    act: Act | None = None
    status: int = 200
    refused: Reason | None = None


def files(*mutations: Mutation) -> Arrange:
    """Other bytes in the model's folder."""

    def arrange(scene: Scene) -> None:
        for mutation in mutations:
            mutation(scene.folder)

    return arrange


def declared(**changes: Any) -> Arrange:
    """Another serving document: each value is merged into the field of its name."""
    return lambda scene: scene.declare(**changes)


def patched(target: str, replacement: Any) -> Arrange:
    """Other code in the server, from before it loads. ``target`` is ``module.attribute`` or ``module.Class.attribute``."""
    return lambda scene: scene.monkeypatch.setattr(target, replacement)


Hook = Callable[[TorchEngine, Scene], object]


def engine(hook: Hook) -> Arrange:
    """A fault inside the running engine that its load-time self-check cannot have seen: applied once it has loaded."""
    return lambda scene: scene.engine_hooks.append(hook)


def stream(change: Callable[[Events], Events]) -> Arrange:
    """Other events than the server meant to send, of every stream."""
    return lambda scene: scene.break_streams(change)


def all_of(*arranges: Arrange) -> Arrange:
    """Several arrangements that make one fault together."""

    def arrange(scene: Scene) -> None:
        for one in arranges:
            one(scene)

    return arrange


def require_unique(faults: Sequence[Fault]) -> tuple[Fault, ...]:
    """The faults, after a look that no two have one name."""
    names = [fault.id for fault in faults]
    assert len(set(names)) == len(names), sorted(name for name in names if names.count(name) > 1)
    return tuple(faults)

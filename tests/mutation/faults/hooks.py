"""How a fault gets into a running engine: around its steps, its requests, its events. Shared by the tables of wrong computation."""

from collections.abc import Callable
from typing import Any

import msgspec

from pratique_contract.reasons import Reason
from pratique_server.engine.step_engine import StepOutput
from pratique_server.engine.torch_engine.engine import TorchEngine
from tests.mutation.fault import Fault, Hook, engine
from tests.mutation.scene import Scene


def changed(event: Any, **fields: Any) -> Any:
    """The same message with other fields."""
    return msgspec.structs.replace(event, **fields)


def on_step(engine: TorchEngine, scene: Scene, change: Callable[[StepOutput], StepOutput]) -> None:
    step = engine.step
    scene.monkeypatch.setattr(engine, "step", lambda: change(step()))


def on_requests(change: Callable[[Any], Any]) -> Hook:
    def hook(engine: TorchEngine, scene: Scene) -> None:
        add = engine.add_request
        scene.monkeypatch.setattr(engine, "add_request", lambda request: add(change(request)))

    return hook


def wrong(
    name: str, hook: Hook, *, reason: Reason = Reason.OUTPUT_MISMATCH, bug: str = "", base: str = "tiny"
) -> Fault:
    return Fault(part="computation", name=name, reason=reason, arrange=engine(hook), bug=bug, base=base)

"""The server under ``bench.gate_cost``: the ordinary serving process that also takes the time of each readiness answer (at its handler,
and from the request's bytes read to the answer's bytes handed to the kernel) and has a switch for re-verification.

``python -m bench.gate_server SERVING.json FOLDER``; what it measured lies in FOLDER when it has ended.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from pratique_contract import constants
from pratique_server import http_server
from pratique_server.config import load_serving_spec
from pratique_server.life import reverification
from pratique_server.management.app import Answer, ManagementApp
from pratique_server.serve import run

# While this file is in FOLDER re-verification runs; the bench makes and removes it between blocks of requests.
SWITCH = "reverify-on"


def main() -> int:
    """Serve until told to stop, then leave what was measured."""
    spec, folder = load_serving_spec(Path(sys.argv[1])), Path(sys.argv[2])
    seconds: dict[str, list[float]] = {"handler": [], "server": []}
    answer = ManagementApp.answer

    def timed(app: ManagementApp, method: str, path: str) -> Answer:
        begun = time.perf_counter()
        result = answer(app, method, path)
        if path == constants.READYZ_PATH:
            seconds["handler"].append(time.perf_counter() - begun)
        return result

    _time_protocol(seconds["server"])

    run_round = reverification.Reverifier._run_round

    async def switched(self: reverification.Reverifier) -> str:
        return await run_round(self) if (folder / SWITCH).exists() else "gave_way"

    app: Any = ManagementApp
    reverifier: Any = reverification.Reverifier
    app.answer, reverifier._run_round = timed, switched
    try:
        return run(spec)
    finally:
        (folder / "taken.json").write_text(json.dumps(seconds))


def _time_protocol(seconds: list[float]) -> None:
    """From a request's bytes in this process to its answer's handed to the kernel: what the server can answer for."""
    make_protocol = http_server.make_protocol

    def make_timed(**limits: Any) -> type[H11Protocol]:
        protocol: Any = make_protocol(**limits)
        answered_at_once = protocol._answered_at_once

        def timed(self: Any, data: bytes) -> bool:
            begun = time.perf_counter()
            answered: bool = answered_at_once(self, data)
            if answered and data.startswith(b"GET /readyz "):
                seconds.append(time.perf_counter() - begun)
            return answered

        protocol._answered_at_once = timed
        return protocol  # type: ignore[no-any-return]

    http_server.make_protocol = make_timed


if __name__ == "__main__":
    sys.exit(main())

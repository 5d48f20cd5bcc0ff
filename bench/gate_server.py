"""The server under ``bench.gate_cost``: the ordinary serving process, with the time of each readiness answer taken at its handler and
a switch for re-verification. ``python -m bench.gate_server SERVING.json FOLDER``; what it measured lies in FOLDER when it has ended.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

from pratique_contract import constants
from pratique_server.config import load_serving_spec
from pratique_server.life import reverification
from pratique_server.management.app import Answer, ManagementApp
from pratique_server.serve import run

# While this file is in FOLDER re-verification runs; the bench makes and removes it between blocks of requests.
SWITCH = "reverify-on"


def main() -> int:
    """Serve until told to stop, then leave what was measured."""
    spec, folder = load_serving_spec(Path(sys.argv[1])), Path(sys.argv[2])
    seconds: list[float] = []
    answer = ManagementApp.answer

    def timed(app: ManagementApp, method: str, path: str) -> Answer:
        begun = time.perf_counter()
        result = answer(app, method, path)
        if path == constants.READYZ_PATH:
            seconds.append(time.perf_counter() - begun)
        return result

    run_round = reverification.Reverifier._run_round

    async def switched(self: reverification.Reverifier) -> str:
        return await run_round(self) if (folder / SWITCH).exists() else "gave_way"

    app: Any = ManagementApp
    reverifier: Any = reverification.Reverifier
    app.answer, reverifier._run_round = timed, switched
    try:
        return run(spec)
    finally:
        (folder / "handler.json").write_text(json.dumps(seconds))


if __name__ == "__main__":
    sys.exit(main())

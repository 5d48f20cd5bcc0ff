"""``python -m pratique_server.fetch --config FILE`` in a pod; ``pratique fetch`` is the form for people."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from pratique_contract.constants import TERMINATION_LOG_PATH


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m pratique_server.fetch", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="serving document, as the operator mounts it")
    parser.add_argument(
        "--termination-log",
        type=Path,
        default=Path(TERMINATION_LOG_PATH),
        help="file of the kubelet's that takes the last word; written only where it exists",
    )
    options = parser.parse_args(arguments)
    # Read when the library is imported: this container is the one place that is online, and it tells nobody.
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    os.environ.pop("HF_HUB_OFFLINE", None)
    from pratique_server.fetch.program import run_document
    from pratique_server.logs import configure_logs

    configure_logs()
    return run_document(options.config, termination_log=options.termination_log)


if __name__ == "__main__":
    sys.exit(main())

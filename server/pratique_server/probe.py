"""The exec form of a probe: asks the management port, prints its reason line, exits 0 or 1.

``kubectl describe pod`` shows what an exec probe printed; of an HTTP probe it shows only the status. Standard library only,
so that it starts in milliseconds: it runs every few seconds in every pod.
"""

import argparse
import http.client
import sys
from collections.abc import Sequence

# Not from the contract package: importing it loads pydantic, which costs more than the probe itself.
PROBES = ("livez", "readyz", "startupz")
TIMEOUT_SECONDS = 3.0
LINE_LENGTH_MAX = 1000


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m pratique_server.probe", description=__doc__)
    parser.add_argument("probe", choices=PROBES)
    parser.add_argument("--port", type=int, default=8001)
    parser.add_argument("--host", default="127.0.0.1")
    options = parser.parse_args(arguments)
    ok, line = ask(options.host, options.port, options.probe)
    print(line)
    return 0 if ok else 1


def ask(host: str, port: int, probe: str) -> tuple[bool, str]:
    """Whether the probe passes, and the first line of the answer."""
    connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_SECONDS)
    try:
        connection.request("GET", f"/{probe}")
        response = connection.getresponse()
        body = response.read(LINE_LENGTH_MAX).decode("utf-8", "replace")
    except OSError as error:
        return False, f"Unreachable: the management port {port} does not answer ({error})"
    finally:
        connection.close()
    return response.status == 200, (body.splitlines() or [f"HTTP {response.status}"])[0]


if __name__ == "__main__":
    sys.exit(main())

"""Ports of 127.0.0.1 that are free right now, for programs that are told where to listen."""

import socket
from contextlib import ExitStack


def free_ports(count: int) -> list[int]:
    """Held open together, so that no two are the same."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(listener.getsockname()[1]) for listener in sockets]

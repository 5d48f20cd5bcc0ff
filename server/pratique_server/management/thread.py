"""Runs the management port in a thread with an event loop of its own: probes must be answered while the API's loop or
the engine is saturated. The socket is bound by the caller's thread, so a taken port is an error at start-up."""

import asyncio
import socket
import threading
from typing import Final

import uvicorn

from pratique_server.management.app import ManagementApp

STOP_SECONDS_MAX: Final = 2.0
CONNECTIONS_MAX: Final = 64


class ManagementThread:
    """``start()`` binds and returns; ``stop()`` joins."""

    def __init__(self, app: ManagementApp, *, host: str, port: int) -> None:
        self._socket = bind(host, port)
        # From here on a probe waits for its answer instead of being refused.
        self._socket.listen(CONNECTIONS_MAX)
        self.port: int = self._socket.getsockname()[1]
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                server_header=False,
                lifespan="off",
                ws="none",
                http="h11",
                loop="asyncio",
                limit_concurrency=CONNECTIONS_MAX,
                timeout_graceful_shutdown=1,
            )
        )
        self._thread = threading.Thread(target=self._run, name="management", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(STOP_SECONDS_MAX)
        self._socket.close()

    def _run(self) -> None:
        asyncio.run(self._server.serve(sockets=[self._socket]))


def bind(host: str, port: int) -> socket.socket:
    """A bound TCP socket; ``port`` 0 takes a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError:
        sock.close()
        raise
    return sock

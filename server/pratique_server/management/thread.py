"""Runs the management port in a thread with an event loop of its own: probes must be answered while the API's loop or
the engine is saturated. The socket is bound by the caller's thread, so a taken port is an error at start-up."""

import asyncio
import socket
import threading
from typing import Final

from pratique_server.http_server import HttpServer
from pratique_server.management.app import ManagementApp

STOP_SECONDS_MAX: Final = 2.0
CONNECTIONS_MAX: Final = 512
# Anyone in the cluster may reach this port; one client must not leave the kubelet without a connection.
CONNECTIONS_PER_CLIENT_MAX: Final = 64
HEADER_SECONDS_MAX: Final = 5.0


class ManagementThread:
    """``start()`` binds and returns; ``stop()`` joins."""

    def __init__(self, app: ManagementApp, *, host: str, port: int) -> None:
        self._socket = bind(host, port)
        # From here on a probe waits for its answer instead of being refused.
        self._socket.listen(CONNECTIONS_MAX)
        self.port: int = self._socket.getsockname()[1]
        # A probe that cannot connect costs the pod its life: connections that say nothing are dropped soon.
        self._server = HttpServer(
            app,
            header_seconds_max=HEADER_SECONDS_MAX,
            keep_alive_seconds=5,
            connections_max=CONNECTIONS_MAX,
            per_client_max=CONNECTIONS_PER_CLIENT_MAX,
            at_once=app.at_once,
        )
        self._thread = threading.Thread(target=self._run, name="management", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(STOP_SECONDS_MAX)
        self._socket.close()

    def _run(self) -> None:
        asyncio.run(self._server.run_on(self._socket))


def bind(host: str, port: int) -> socket.socket:
    """A bound TCP socket; ``port`` 0 takes a free one. An ``OSError`` names the address: a server has two of them."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise OSError(error.errno, f"{error.strerror}: {host} port {port}") from error
    return sock

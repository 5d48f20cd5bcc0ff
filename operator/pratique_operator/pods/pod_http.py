"""One GET to a pod's management port, bounded as a whole: in bytes, and in seconds from the first packet to the last byte.

A pod is not trusted. A socket's timeout starts anew with every byte, so one that trickles its answer, or says ``100 Continue`` for ever,
would keep a thread that all services share. No redirect is followed and nothing is decompressed: the answer is the pod's own bytes.
"""

import socket
import threading
import time
from contextlib import suppress
from http.client import HTTPConnection, HTTPException

from pratique_contract import constants
from pratique_operator.errors import UnavailableError


def get(address: str | None, path: str, *, seconds_max: float, bytes_max: int) -> tuple[int, bytes]:
    """Status and at most ``bytes_max`` bytes of the body. Raises ``UnavailableError``."""
    end = time.monotonic() + seconds_max
    connection = HTTPConnection(address or "", constants.MANAGEMENT_PORT, timeout=seconds_max)
    cut = threading.Event()
    try:
        connection.connect()
        watchdog = threading.Timer(end - time.monotonic(), _cut, (connection.sock, cut))
        watchdog.daemon = True
        watchdog.start()
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            status, body = response.status, response.read(bytes_max)
        finally:
            watchdog.cancel()
    except (OSError, HTTPException, ValueError) as error:
        raise UnavailableError(f"{address} did not answer: {error or type(error).__name__}") from error
    finally:
        connection.close()
    if cut.is_set():  # the body then ends early, and looks whole
        raise UnavailableError(f"{address} had not answered after {seconds_max:g} s")
    return status, body


def _cut(connection: socket.socket, cut: threading.Event) -> None:
    cut.set()
    with suppress(OSError):  # it may have been closed this moment
        connection.shutdown(socket.SHUT_RDWR)

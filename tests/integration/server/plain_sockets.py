"""Plain sockets, for what no client library sends or notices."""

import socket

from tests.integration.server.running import Running


def request_bytes(body: bytes, *, key: str, length: int | None = None, extra: str = "") -> bytes:
    """A chat request; ``length`` is what it claims where that is not what it has."""
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body) if length is None else length}\r\n{extra}\r\n"
    )
    return head.encode() + body


def read_all(connection: socket.socket, *, seconds: float = 5.0) -> bytes:
    """Everything until the server closes; a server that does not close fails the test."""
    connection.settimeout(seconds)
    received = b""
    while part := connection.recv(65536):
        received += part
    return received


def connect(server: Running) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.api_port), timeout=5)

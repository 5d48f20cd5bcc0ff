"""Connections are bounded whatever a client leaves unsent, on a real socket."""

import asyncio
import socket
from typing import Any

import pytest

from pratique_server import http_server
from pratique_server.http_server import HttpServer

LIMIT = 0.3


async def _answer_at_once(scope: Any, receive: Any, send: Any) -> None:
    """Reads no body, as the management port and every GET."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


async def _seconds_open(*, drip: int) -> float:
    """How long a connection lives whose announced body comes byte by byte, ``drip`` in all, after the answer."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = HttpServer(_answer_at_once, header_seconds_max=LIMIT, keep_alive_seconds=1)
    serving = asyncio.create_task(server.run_on(listener))
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    clock = asyncio.get_running_loop().time
    try:
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n")
        assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
        begun = clock()
        for _ in range(drip):
            writer.write(b"x")
            await asyncio.sleep(LIMIT / 3)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            async with asyncio.timeout(1.7):
                await reader.readexactly(1)
        return clock() - begun
    finally:
        writer.close()
        server.should_exit = True
        await serving


@pytest.mark.parametrize("drip", [0, 1, 4])
async def test_a_body_that_nobody_reads_does_not_hold_its_connection(drip: int) -> None:
    """One byte after the answer ended uvicorn's keep-alive timer for good; 256 such connections were all that the probes have."""
    assert await _seconds_open(drip=drip) < 1.6


async def test_one_client_cannot_take_every_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """The management port answers the kubelet's probes, and anyone in the cluster may connect to it."""
    clients = iter(["10.0.0.7"] * 3 + ["10.0.0.8", "10.0.0.7"])
    monkeypatch.setattr(http_server, "_address_of", lambda _transport: next(clients))
    listener = socket.create_server(("127.0.0.1", 0))
    server = HttpServer(_answer_at_once, header_seconds_max=5, keep_alive_seconds=5, per_client_max=2)
    serving = asyncio.create_task(server.run_on(listener))
    writers = []

    async def is_answered() -> bool:
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        writers.append(writer)
        try:
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            return (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
        except (ConnectionError, asyncio.IncompleteReadError):
            return False

    try:
        assert [await is_answered() for _ in range(4)] == [True, True, False, True]
        writers[0].close()
        await writers[0].wait_closed()
        await asyncio.sleep(0.05)
        assert await is_answered()
    finally:
        for writer in writers:
            writer.close()
        server.should_exit = True
        await serving

"""Answers that are known at once go past uvicorn's cycle; nobody can tell but by the time it takes. On real sockets."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from pratique_server.http_server import BareRequest, HttpServer, Response, understand

PLAIN = b"GET /probe HTTP/1.1\r\nHost: x\r\n\r\n"
KUBELET = b"GET /probe HTTP/1.1\r\nHost: 10.0.0.7:8081\r\nUser-Agent: kube-probe/1.34\r\nAccept: */*\r\nConnection: close\r\n\r\n"
HEADERS = [(b"content-type", b"text/plain"), (b"content-length", b"3")]
LIMIT = 0.3

Ask = Callable[..., Awaitable[bytes]]


class Application:
    """Says ``ok`` to everything, once the request's body is there, and counts; ``at_once`` says the same to ``/probe``."""

    def __init__(self) -> None:
        self.calls = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.calls += 1
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        await send({"type": "http.response.body", "body": b"ok\n"})

    def at_once(self, method: str, path: str) -> Response | None:
        return Response(200, HEADERS, b"ok\n") if (method, path) == ("GET", "/probe") else None


@asynccontextmanager
async def _serving(application: Application, *, short: bool = True, **limits: Any) -> AsyncIterator[tuple[str, int]]:
    listener = socket.create_server(("127.0.0.1", 0))
    bounds = {"header_seconds_max": 5.0, "keep_alive_seconds": 5, **limits}
    at_once = {"at_once": application.at_once} if short else {}
    server = HttpServer(application, **bounds, **at_once)  # type: ignore[arg-type]
    serving = asyncio.create_task(server.run_on(listener))
    await server.listening.wait()
    try:
        yield listener.getsockname()
    finally:
        server.should_exit = True
        await serving


async def _exchange(address: tuple[str, int], *parts: bytes, answers: int) -> tuple[bytes, bool]:
    """What came back (the date masked), and whether the server closed after the last answer."""
    reader, writer = await asyncio.open_connection(*address)
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.01)
        got = b"".join([await reader.readuntil(b"ok\n") for _ in range(answers)])
        try:
            async with asyncio.timeout(0.05):
                closed = await reader.read(1) == b""
        except TimeoutError:
            closed = False
        return re.sub(rb"date: [^\r]+", b"date: D", got), closed
    finally:
        writer.close()


async def test_the_short_way_sends_the_same_bytes_as_the_long_one() -> None:
    served = Application()
    async with _serving(served) as short, _serving(served, short=False) as long:
        for request in PLAIN, KUBELET, PLAIN.replace(b"Host", b"Connection: keep-alive\r\nHost"):
            before = served.calls
            assert await _exchange(short, request, answers=1) == await _exchange(long, request, answers=1)
            assert served.calls == before + 1


IN_TURN = {
    "one by one": ([PLAIN, PLAIN, PLAIN], 0),
    "cut": ([PLAIN[:9], PLAIN[9:], PLAIN], 1),
    "two at once": ([PLAIN + PLAIN], 2),
    "one and a bit": ([PLAIN + PLAIN[:9], PLAIN[9:]], 2),
    "behind a body": (
        [PLAIN.replace(b"GET", b"POST").replace(b"\r\n\r\n", b"\r\nContent-Length: 3\r\n\r\n"), b"abc", PLAIN],
        1,
    ),
    "another path": ([PLAIN.replace(b"/probe", b"/other"), PLAIN], 1),
    "a query": ([PLAIN.replace(b"/probe", b"/probe?x"), PLAIN], 1),
    "long headers": ([PLAIN.replace(b"Host", b"X: " + b"y" * 2000 + b"\r\nHost"), PLAIN], 1),
}


async def test_a_connection_may_take_both_ways_in_turn() -> None:
    served = Application()
    found = {}
    async with _serving(served) as address:
        for name, (parts, _) in IN_TURN.items():
            before, asked = served.calls, b"".join(parts).count(b"HTTP/1.1")
            got, closed = await _exchange(address, *parts, answers=asked)
            assert (name, got.count(b"HTTP/1.1 200 "), closed) == (name, asked, False)
            found[name] = served.calls - before
    assert found == {name: long_ways for name, (_, long_ways) in IN_TURN.items()}


async def test_a_probe_does_not_overtake_the_request_before_it() -> None:
    body = PLAIN.replace(b"GET", b"POST").replace(b"\r\n\r\n", b"\r\nContent-Length: 40\r\n\r\n")
    served = Application()
    async with _serving(served) as address:
        # The probe's bytes are the first of the body that is awaited.
        got, _ = await _exchange(address, body, PLAIN, b"x" * (40 - len(PLAIN)), answers=1)
    assert (got.count(b"HTTP/1.1 200 "), served.calls) == (1, 1)


async def test_a_request_without_a_host_is_refused_as_ever() -> None:
    async with _serving(Application()) as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"GET /probe HTTP/1.1\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
        writer.close()


async def test_connections_end_after_the_short_way_as_after_the_long_one() -> None:
    async with _serving(Application(), header_seconds_max=LIMIT, keep_alive_seconds=1) as address:

        async def ends(rest: bytes) -> bool:
            reader, writer = await asyncio.open_connection(*address)
            writer.write(PLAIN)
            await reader.readuntil(b"ok\n")
            # Longer than a header may take: the timer of the connection's beginning must have been stopped.
            await asyncio.sleep(LIMIT * 1.5)
            writer.write(PLAIN)
            await reader.readuntil(b"ok\n")
            writer.write(rest)
            try:
                async with asyncio.timeout(1.7):
                    return await reader.read() == b""
            except ConnectionError:
                return bool(rest)
            finally:
                writer.close()

        # Idle, and in the middle of a request.
        assert await asyncio.gather(ends(b""), ends(PLAIN[:9])) == [True, True]


async def test_probes_are_answered_when_every_connection_is_taken() -> None:
    served = Application()
    async with _serving(served, connections_max=3) as address:
        taken = [await asyncio.open_connection(*address) for _ in range(3)]
        reader, writer = await asyncio.open_connection(*address)
        writer.write(PLAIN.replace(b"/probe", b"/other"))
        assert (await reader.readline()).startswith(b"HTTP/1.1 503 ")
        got, _ = await _exchange(address, KUBELET, answers=1)
        assert got.startswith(b"HTTP/1.1 200 ")
        for _, other in [*taken, (reader, writer)]:
            other.close()


async def test_a_port_without_a_short_way_remembers_nothing_of_its_requests() -> None:
    """They hold keys and prompts, would be read twice, and push what probers send out of the memory."""
    understand.cache_clear()
    async with _serving(Application(), short=False) as address:
        await _exchange(address, PLAIN, PLAIN.replace(b"Host", b"Authorization: Bearer key\r\nHost"), answers=2)
    assert understand.cache_info().misses == 0


@pytest.mark.parametrize(
    "data",
    [
        b"",
        PLAIN[:-2],
        PLAIN + b"G",
        PLAIN + PLAIN,
        PLAIN.replace(b"1.1", b"1.0"),
        PLAIN.replace(b"Host: x\r\n", b""),
        PLAIN.replace(b"Host", b"Content-Length: 3\r\nHost"),
        PLAIN.replace(b"Host", b"Content-Length: 3\r\nHost") + b"abc",
        PLAIN.replace(b"Host", b"Transfer-Encoding: chunked\r\nHost"),
        PLAIN.replace(b"Host", b"Connection: upgrade\r\nUpgrade: websocket\r\nHost"),
        PLAIN.replace(b"GET /probe", b"CONNECT /probe"),
        b"\x16\x03\x01\x00",
    ],
)
def test_only_one_whole_request_without_a_body_is_understood(data: bytes) -> None:
    assert understand(data) is None


def test_what_is_understood_is_what_h11_reads() -> None:
    assert understand(PLAIN) == BareRequest("GET", "/probe", keeps_alive=True)
    assert understand(KUBELET) == BareRequest("GET", "/probe", keeps_alive=False)
    assert understand(PLAIN.replace(b"GET", b"HEAD")) == BareRequest("HEAD", "/probe", keeps_alive=True)

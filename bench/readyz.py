"""How soon ``/readyz`` is answered: who asks, what it is compared with, and the load meanwhile, each in a process of its own, since a
client that shares an interpreter with the load measures itself.

Two references are asked in turn with the server under test. *alone*: the same management port in a process that does nothing else, so
what a busy engine and a busy API cost is the difference to it. *bare*: a server that answers any request with the same bytes, which
is what this machine takes for a round trip.
"""

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import httpx

from pratique_contract import Reason, Verdict, VerdictResult
from pratique_server.gate.holder import VerdictHolder
from pratique_server.management.app import ManagementApp
from pratique_server.management.status import PodStatus
from pratique_server.management.thread import ManagementThread
from pratique_server.metrics import Metrics

STREAMS: Final = 24  # more than max_num_seqs (16): some always wait
PAUSE_SECONDS: Final = 0.01
BARE_ANSWER: Final = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 3\r\n\r\nok\n"


def ask_in_turn(ports: Mapping[str, int], seconds: float) -> dict[str, Any]:
    """Ask each port on a connection that stays open and on a new one for each (as the kubelet does), for ``seconds`` in all. Keys are
    ``NAME kept`` and ``NAME new``, values those of ``summarize``."""
    arguments = [str(seconds), *(f"{name}={port}" for name, port in ports.items())]
    done = subprocess.run([*_command("ask"), *arguments], stdout=subprocess.PIPE, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@contextmanager
def reference_servers() -> Iterator[dict[str, int]]:
    """The ports of the two that are compared with."""
    with _child("alone") as alone, _child("bare") as bare:
        yield {"alone": int(alone.readline()), "bare": int(bare.readline())}


@contextmanager
def saturated(url: str) -> Iterator[None]:
    """``STREAMS`` long answers run all the time."""
    with _child("saturate", url):
        yield


def chat_body(text: str, *, max_tokens: int) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return {"model": "smollm2", "messages": messages, "max_tokens": max_tokens, "ignore_eos": True, "stream": True}


def summarize(seconds: list[float]) -> dict[str, Any]:
    """Milliseconds."""
    ordered = sorted(value * 1000 for value in seconds)

    def at(share: float) -> float:
        return round(ordered[min(int(share * len(ordered)), len(ordered) - 1)], 3)

    return {"count": len(ordered), "p50": at(0.5), "p95": at(0.95), "p99": at(0.99), "max": round(ordered[-1], 3)}


def _command(role: str) -> list[str]:
    return [sys.executable, "-m", "bench.readyz", role]


@contextmanager
def _child(role: str, *arguments: str) -> Iterator[Any]:
    child = subprocess.Popen([*_command(role), *arguments], stdout=subprocess.PIPE)
    try:
        yield child.stdout
    finally:
        child.kill()
        child.communicate()


def _ask_all(seconds: float, ports: Mapping[str, int]) -> dict[str, list[float]]:
    kept = {name: _connect(port) for name, port in ports.items()}
    taken: dict[str, list[float]] = {f"{name} {how}": [] for name in ports for how in ("kept", "new")}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for name, port in ports.items():
            begun = time.perf_counter()
            _ask(kept[name])
            taken[f"{name} kept"].append(time.perf_counter() - begun)
            time.sleep(PAUSE_SECONDS)
            begun = time.perf_counter()
            with _connect(port) as connection:
                _ask(connection)
            taken[f"{name} new"].append(time.perf_counter() - begun)
            time.sleep(PAUSE_SECONDS)
    return taken


def _connect(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=10)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _ask(connection: socket.socket) -> None:
    connection.sendall(b"GET /readyz HTTP/1.1\r\nhost: bench\r\n\r\n")
    answer = b""
    while not _is_whole(answer):
        more = connection.recv(65536)
        if not more:
            raise RuntimeError("the connection was closed")
        answer += more
    if not answer.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(f"not ready: {answer[:200]!r}")


def _is_whole(answer: bytes) -> bool:
    head, end, body = answer.partition(b"\r\n\r\n")
    length = next((line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), b":0")
    return bool(end) and len(body) >= int(length.partition(b":")[2])


async def _saturate(url: str) -> None:
    # Its place is another machine: here it may keep the pod's processors busy, but not take them from the answers that are timed.
    os.nice(19)
    limits = httpx.Limits(max_connections=STREAMS)
    async with httpx.AsyncClient(base_url=url, timeout=None, limits=limits, trust_env=False) as client:

        async def one(number: int) -> None:
            while True:
                body = chat_body(f"Tell me a story about ship number {number}.", max_tokens=400)
                async with client.stream("POST", "/v1/chat/completions", json=body) as response:
                    async for _ in response.aiter_raw():
                        pass

        await asyncio.gather(*(one(number) for number in range(STREAMS)))


def _serve_alone() -> None:
    """The management port of a pod that has passed and has no engine to wait for."""
    holder = VerdictHolder()
    holder.set(Verdict(result=VerdictResult.PASS, reason=Reason.VERIFIED, message="Release 000000000000 verified"))
    status = PodStatus(holder, heartbeat_seconds_max=1.0)
    status.engine_up = True
    port = ManagementThread(ManagementApp(status, Metrics(), drain=lambda: None), host="127.0.0.1", port=0)
    port.start()
    print(port.port, flush=True)
    while True:
        time.sleep(60)


async def _serve_bare() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(BARE_ANSWER)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def main() -> None:
    match sys.argv[1:]:
        case ["ask", seconds, *targets]:
            ports = {name: int(port) for name, port in (target.split("=") for target in targets)}
            print(json.dumps({name: summarize(values) for name, values in _ask_all(float(seconds), ports).items()}))
        case ["saturate", url]:
            asyncio.run(_saturate(url))
        case ["alone"]:
            _serve_alone()
        case ["bare"]:
            asyncio.run(_serve_bare())
        case other:
            sys.exit(f"unknown: {other}")


if __name__ == "__main__":
    main()

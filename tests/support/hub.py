"""A hub of our own: the part of the Hugging Face hub's protocol that downloads need, over folders, with faults on demand.

``python -m tests.support.hub DIR --port N`` serves every folder ``DIR/owner/name`` as a repository of one commit (a digest of its
files), in which large files are LFS objects. This file needs the standard library only and no other file of ours, so that it also
runs alone in a pod. In tests, ``Hub`` is a context manager; ``faults`` breaks chosen answers, ``requests`` tells what was asked.
"""

import argparse
import fnmatch
import hashlib
import json
import re
import ssl
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

LFS_SUFFIXES = (".safetensors", ".bin", ".pt", ".model")
LFS_BYTES_MIN = 1024 * 1024
PAGE = 4  # files in one page of a listing: every listing in a test has several pages
CHUNK = 64 * 1024


@dataclass
class Fault:
    """What goes wrong with answers to paths that match ``path`` (a glob), the first ``times`` times. ``skip`` lets some pass before.

    ``status`` answers that instead. ``cut`` ends the connection after so many bytes of the body, ``flip`` inverts the byte of the
    file at this offset, ``rate`` sends so many bytes per second, ``stall`` stops for so many seconds after ``stall_at`` bytes.
    ``no_ranges`` ignores Range, ``extra`` goes on after the end. ``headers`` replace those of the answer, None
    drops one.
    """

    path: str = "*"
    times: int = sys.maxsize
    skip: int = 0
    status: int | None = None
    headers: Mapping[str, str | None] = field(default_factory=dict)
    body: bytes = b""
    cut: int | None = None
    flip: int | None = None
    rate: int | None = None
    stall: float = 0.0
    stall_at: int = 0
    no_ranges: bool = False
    extra: bytes = b""


@dataclass(frozen=True)
class Asked:
    """One request as it came in."""

    method: str
    path: str
    range: str | None
    authorization: str | None


class Peer:
    """An HTTP server in a thread that answers with ``answer`` and breaks what ``faults`` name. Subclasses say what there is."""

    def __init__(self, *, port: int = 0, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> None:
        self.faults: list[Fault] = []
        self.requests: list[Asked] = []
        self._lock = threading.Lock()
        peer = self

        class Handler(_Handler):
            owner = peer

        self._server = ThreadingHTTPServer((host, port), Handler)
        self._server.daemon_threads = True
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self.port: int = self._server.server_address[1]
        self.url = f"{'http' if tls is None else 'https'}://{host}:{self.port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def serve_forever(self) -> None:
        self._server.serve_forever()

    def answer(self, request: "_Handler") -> None:
        raise NotImplementedError

    def asked(self, glob: str = "*") -> list[Asked]:
        """The requests for paths that match, in their order."""
        with self._lock:
            return [asked for asked in self.requests if fnmatch.fnmatch(asked.path, glob)]

    def note(self, asked: Asked) -> None:
        with self._lock:
            self.requests.append(asked)

    def take_fault(self, path: str) -> Fault:
        """The first fault that applies to this answer, used up once; one without effect when there is none."""
        with self._lock:
            for fault in self.faults:
                if not fnmatch.fnmatch(path, fault.path) or fault.times <= 0:
                    continue
                if fault.skip > 0:
                    fault.skip -= 1
                    continue
                fault.times -= 1
                return fault
        return Fault()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = 60
    owner: Peer

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def _answer(self) -> None:
        self.route = unquote(urlsplit(self.path).path)
        self.query = parse_qs(urlsplit(self.path).query)
        self.owner.note(Asked(self.command, self.route, self.headers["Range"], self.headers["Authorization"]))
        self.fault = self.owner.take_fault(self.route)
        try:
            if self.fault.status is not None:
                self.send(self.fault.status, self.fault.body, self.fault.headers)
            else:
                self.owner.answer(self)
        except (BrokenPipeError, ConnectionResetError, ssl.SSLError):
            self.close_connection = True

    def send(self, status: int, body: bytes = b"", headers: Mapping[str, str | None] | None = None) -> None:
        """A small answer as a whole."""
        time.sleep(self.fault.stall)
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            if value is not None:
                self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_json(self, value: Any, headers: Mapping[str, str] | None = None) -> None:
        self.send(200, json.dumps(value).encode(), {"Content-Type": "application/json", **(headers or {})})

    def send_content(self, content: "bytes | Path", headers: Mapping[str, str]) -> None:
        """A file, or the range of it that was asked for, with whatever fault applies."""
        size = len(content) if isinstance(content, bytes) else content.stat().st_size
        start, end = 0, size
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers["Range"] or "")
        status = 200
        if asked and not self.fault.no_ranges:
            start, end = int(asked[1]), min(size, int(asked[2]) + 1 if asked[2] else size)
            if start >= size:
                self.send(416, b"", {"Content-Range": f"bytes */{size}"})
                return
            status = 206
        self.send_response(status)
        every = {"Content-Length": str(end - start + len(self.fault.extra)), "Accept-Ranges": "bytes", **headers}
        if status == 206:
            every["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
        for name, value in {**every, **self.fault.headers}.items():
            if value is not None:
                self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self._send_body(content, start, end)

    def _send_body(self, content: "bytes | Path", start: int, end: int) -> None:
        fault, sent = self.fault, 0
        chunk = CHUNK if fault.rate is None else max(1, min(CHUNK, fault.rate // 20))
        for offset in range(start, end, chunk):
            piece = bytearray(_read(content, offset, min(chunk, end - offset)))
            if fault.flip is not None and offset <= fault.flip < offset + len(piece):
                piece[fault.flip - offset] ^= 0xFF
            if fault.cut is not None and sent + len(piece) > fault.cut:
                self.wfile.write(piece[: fault.cut - sent])
                self.wfile.flush()
                self.close_connection = True
                return
            if fault.stall and sent <= fault.stall_at < sent + len(piece):
                self.wfile.flush()
                time.sleep(fault.stall)
            self.wfile.write(piece)
            sent += len(piece)
            if fault.rate is not None:
                self.wfile.flush()
                time.sleep(len(piece) / fault.rate)
        self.wfile.write(fault.extra)

    def log_message(self, *_: Any) -> None:
        """Quiet: ``requests`` has it."""


def _read(content: "bytes | Path", offset: int, length: int) -> bytes:
    if isinstance(content, bytes):
        return content[offset : offset + length]
    with content.open("rb") as file:
        file.seek(offset)
        return file.read(length)


@dataclass(frozen=True)
class Entry:
    """One file of a repository with the digests the hub tells about it."""

    path: Path
    size: int
    sha256: str
    blob: str

    @property
    def lfs(self) -> bool:
        return self.path.name.endswith(LFS_SUFFIXES) or self.size >= LFS_BYTES_MIN


class Repository:
    """A folder as a repository of one commit."""

    def __init__(self, folder: Path) -> None:
        self.files: dict[str, Entry] = {}
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.files[path.relative_to(folder).as_posix()] = _make_entry(path)
        self.commit = hashlib.sha1(
            "\n".join(f"{name} {entry.sha256}" for name, entry in self.files.items()).encode()
        ).hexdigest()

    def tree(self) -> list[dict[str, Any]]:
        """What the listing says, folders included."""
        folders = sorted({str(Path(name).parent) for name in self.files} - {"."})
        values: list[dict[str, Any]] = [{"type": "directory", "oid": "0" * 40, "size": 0, "path": f} for f in folders]
        for name, entry in self.files.items():
            value = {"type": "file", "oid": entry.blob, "size": entry.size, "path": name}
            if entry.lfs:
                value["lfs"] = {"oid": entry.sha256, "size": entry.size, "pointerSize": 134}
            values.append(value)
        return values


def commit_of(folder: Path) -> str:
    """The commit under which the hub serves a folder."""
    return Repository(folder).commit


def _make_entry(path: Path) -> Entry:
    size = path.stat().st_size
    sha256, blob = hashlib.sha256(), hashlib.sha1(f"blob {size}\0".encode())
    with path.open("rb") as file:
        while piece := file.read(1024 * 1024):
            sha256.update(piece)
            blob.update(piece)
    return Entry(path, size, sha256.hexdigest(), blob.hexdigest())


class Hub(Peer):
    """``token`` makes every repository private; ``gated`` ones are listed and
    give no file. Large files are redirected to ``cdn``, by default to this
    very server under its other name, as the hub redirects to a host that must not see the token."""

    def __init__(
        self,
        root: Path,
        *,
        token: str | None = None,
        gated: bool = False,
        cdn: str | None = None,
        port: int = 0,
        host: str = "127.0.0.1",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(port=port, host=host, tls=tls)
        self.repositories = {
            path.relative_to(root).as_posix(): Repository(path) for path in sorted(root.glob("*/*")) if path.is_dir()
        }
        self._token, self._gated = token, gated
        self._cdn = cdn if cdn is not None else self.url.replace("127.0.0.1", "localhost")
        self._blobs = {e.sha256: e.path for r in self.repositories.values() for e in r.files.values()}

    def answer(self, request: _Handler) -> None:
        path = request.route
        if found := re.fullmatch(r"/cdn/([0-9a-f]{64})", path):
            self._send_blob(request, found[1])
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/([^/]+)", path):
            self._send_tree(request, found[1], found[2])
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+?)(?:/revision/([^/]+))?", path):
            self._send_model(request, found[1], found[2] or "main")
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self._send_file(request, found[1], found[2], found[3])
        else:
            request.send(404, b"no such path")

    def _find(self, request: _Handler, name: str, revision: str) -> Repository | None:
        """The repository, or None after an answer like the hub's was given."""
        repository = self.repositories.get(name)
        shown = request.headers["Authorization"]
        if self._token is not None and shown not in (None, f"Bearer {self._token}"):
            request.send(401, b"", {"X-Error-Message": "Invalid credentials in Authorization header"})
        elif repository is None or (self._token is not None and shown is None):
            # The hub does not tell a stranger whether a private repository exists.
            headers = {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}
            request.send(404 if shown else 401, b"", headers)
        elif self._gated and "/resolve/" in request.route:
            request.send(
                403, b"", {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to this model is restricted"}
            )
        elif revision not in (repository.commit, "main"):
            message = f"Invalid rev id: {revision}"
            request.send(404, b"", {"X-Error-Code": "RevisionNotFound", "X-Error-Message": message})
        else:
            return repository
        return None

    def _send_tree(self, request: _Handler, name: str, revision: str) -> None:
        repository = self._find(request, name, revision)
        if repository is None:
            return
        entries = repository.tree()
        start = int(request.query.get("cursor", ["0"])[0])
        headers = {}
        if start + PAGE < len(entries):
            scheme = self.url.partition(":")[0]
            url = f"{scheme}://{request.headers['Host']}{request.route}?recursive=True&cursor={start + PAGE}"
            headers["Link"] = f'<{url}>; rel="next"'
        request.send_json(entries[start : start + PAGE], headers)

    def _send_model(self, request: _Handler, name: str, revision: str) -> None:
        repository = self._find(request, name, revision)
        if repository is None:
            return
        siblings = [{"rfilename": path} for path in repository.files]
        request.send_json(
            {"_id": "0", "id": name, "modelId": name, "sha": repository.commit, "private": False, "siblings": siblings}
        )

    def _send_file(self, request: _Handler, name: str, revision: str, path: str) -> None:
        repository = self._find(request, name, revision)
        if repository is None:
            return
        entry = repository.files.get(path)
        if entry is None:
            request.send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found"})
            return
        headers = {"X-Repo-Commit": repository.commit}
        if not entry.lfs:
            request.send_content(entry.path, {**headers, "ETag": f'"{entry.blob}"'})
            return
        linked = {"X-Linked-Size": str(entry.size), "X-Linked-ETag": f'"{entry.sha256}"'}
        location = f"{self._cdn}/cdn/{entry.sha256}?Signature=very-secret"
        request.send(302, b"", {**headers, **linked, **request.fault.headers, "Location": location})

    def _send_blob(self, request: _Handler, sha256: str) -> None:
        # A store of its own refuses a second credential; on the hub's own address (no ``cdn``) a client rightly sends it again.
        if self._cdn and request.headers["Authorization"] is not None:
            request.send(400, b"only one auth mechanism allowed")
            return
        path = self._blobs.get(sha256)
        if path is None:
            request.send(404, b"")
            return
        request.send_content(path, {"ETag": f'"{sha256}"'})


def _read_fault(*, body: str = "", **fields: Any) -> Fault:
    """From JSON, which has no bytes."""
    return Fault(body=body.encode(), **fields)


def main() -> None:
    """Serve until killed; prints each repository's commit first."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=Path, help="folder with one folder per owner, and in it one per repository")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--host", default="0.0.0.0")
    parser.add_argument("--token", help="make every repository private")
    parser.add_argument("--corrupt", action="append", default=[], help="glob of paths to answer with one wrong byte")
    parser.add_argument("--rate", type=int, help="bytes per second of each connection")
    parser.add_argument("--faults", type=Path, help="JSON list of faults, each an object with the fields of Fault")
    options = parser.parse_args()
    hub = Hub(options.root, token=options.token, cdn="", port=options.port, host=options.host)
    hub.faults += [Fault(path=glob, flip=0) for glob in options.corrupt]
    if options.rate:
        hub.faults.append(Fault(rate=options.rate))
    if options.faults:
        hub.faults += [_read_fault(**fields) for fields in json.loads(options.faults.read_text(encoding="utf-8"))]
    for name, repository in hub.repositories.items():
        print(f"{name}@{repository.commit}", flush=True)
    hub.serve_forever()


if __name__ == "__main__":
    main()

"""A real S3-compatible server (moto) as a process of its own, installed once into the cache and never into our environment."""

import hashlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import urllib3
from minio import Minio

from tests.support.models import cache_dir

REQUIREMENTS = Path(__file__).with_name("s3.txt")
ACCESS_KEY, SECRET_KEY = "AKIAEXAMPLE", "a-secret-access-key"
START_SECONDS = 30.0


@dataclass(frozen=True)
class S3:
    """A running server and a client that may write to it."""

    endpoint: str
    client: Minio

    def upload(self, bucket: str, prefix: str, folder: Path) -> None:
        """Every file of a folder as an object under the prefix."""
        if not self.client.bucket_exists(bucket):
            self.client.make_bucket(bucket)
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.client.fput_object(bucket, f"{prefix}{path.relative_to(folder).as_posix()}", str(path))


@contextmanager
def serve() -> Iterator[S3]:
    """Start it on a free port; stopped at the end."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        env={**os.environ, "PYTHONPATH": str(install()), "AWS_DEFAULT_REGION": "us-east-1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait_for(port, process)
        with connect(f"http://127.0.0.1:{port}") as server:
            yield server
    finally:
        process.terminate()
        process.wait(timeout=10)


@contextmanager
def connect(endpoint: str) -> Iterator[S3]:
    """A client of a server that runs somewhere."""
    pool = urllib3.PoolManager(timeout=urllib3.Timeout(connect=5, read=20), retries=False)
    host = endpoint.removeprefix("http://")
    yield S3(endpoint, Minio(host, ACCESS_KEY, SECRET_KEY, secure=False, region="us-east-1", http_client=pool))
    pool.clear()


def install() -> Path:
    """The folder with the server's packages; made once for each content of the requirements."""
    key = hashlib.sha256(REQUIREMENTS.read_bytes() + sys.version.encode()).hexdigest()[:12]
    target = cache_dir() / "s3-server" / key
    if target.exists():
        return target
    partial = target.with_name(f"{key}.{os.getpid()}")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*command, "--target", str(partial), "-r", str(REQUIREMENTS)], check=True)
    try:
        partial.rename(target)
    except OSError:  # another test process was faster
        shutil.rmtree(partial)
    return target


def _wait_for(port: int, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the S3 server ended with {process.returncode}")
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise RuntimeError(f"the S3 server did not listen within {START_SECONDS:.0f} s")

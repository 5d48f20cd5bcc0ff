"""The S3 server as a pod runs it: ``python -m tests.support.s3_pod DIR --port N`` with moto on the path.

Every folder ``DIR/bucket/prefix`` is uploaded first, through a port that only this pod sees: whoever finds the real one open finds the
objects, too. This file needs moto, minio and no other file of ours.
"""

import argparse
import threading
from pathlib import Path

import urllib3
from minio import Minio
from moto.server import ThreadedMotoServer

_FILLING_PORT = 9000


def fill(root: Path) -> None:
    """Upload what lies below the root; all servers of a process hold the same objects."""
    server = ThreadedMotoServer("127.0.0.1", _FILLING_PORT, verbose=False)
    server.start()
    pool = urllib3.PoolManager(timeout=20.0, retries=False)
    client = Minio(f"127.0.0.1:{_FILLING_PORT}", "any", "thing", secure=False, region="us-east-1", http_client=pool)
    for bucket in sorted(root.iterdir()):
        client.make_bucket(bucket.name)
        for path in sorted(path for path in bucket.rglob("*") if path.is_file()):
            client.fput_object(bucket.name, path.relative_to(bucket).as_posix(), str(path))
    pool.clear()
    server.stop()


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=Path)
    parser.add_argument("--port", type=int, default=8080)
    options = parser.parse_args()
    if options.root.is_dir():
        fill(options.root)
    ThreadedMotoServer("0.0.0.0", options.port, verbose=False).start()
    threading.Event().wait()


if __name__ == "__main__":
    main()

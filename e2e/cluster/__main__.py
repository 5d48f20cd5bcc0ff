"""Command line: `python -m e2e.cluster up | down | status | env | images | kubectl`."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from e2e.cluster import images, lifecycle, machine, settings
from e2e.cluster.content import Cache
from e2e.cluster.engine import private_socket
from e2e.cluster.errors import ClusterError
from e2e.cluster.lifecycle import Context
from e2e.cluster.progress import Progress


def parser() -> argparse.ArgumentParser:
    """The commands."""
    top = argparse.ArgumentParser(prog="python -m e2e.cluster", description="A kind cluster without a registry.")
    top.add_argument("--provider", choices=settings.PROVIDERS, help="default: $PRATIQUE_CLUSTER, else auto")
    commands = top.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="create the cluster, or bring it back")
    up.add_argument("--recreate", action="store_true", help="delete a cluster that is there first")
    up.add_argument("--images", action="store_true", help="build and load our images too")
    down = commands.add_parser("down", help="delete the cluster and stop our dockerd")
    down.add_argument("--purge", action="store_true", help="delete dockerd's data and firewall chains too")
    commands.add_parser("status", help="say what there is (exit 1 when the cluster does not serve)")
    commands.add_parser("env", help='print exports for a shell: eval "$(python -m e2e.cluster env)"')
    build = commands.add_parser("images", help="build our images and load them into the node")
    build.add_argument("--output", type=Path, help="write an OCI archive instead of loading")
    kubectl = commands.add_parser("kubectl", help="run kubectl against the cluster: kubectl -- get pods")
    kubectl.add_argument("arguments", nargs=argparse.REMAINDER)
    return top


def dispatch(arguments: argparse.Namespace, context: Context) -> int:
    """Run one command; its exit code."""
    say = context.progress.say
    match arguments.command:
        case "up":
            with context.cache.locked(say=say):
                up(context, recreate=arguments.recreate, with_images=arguments.images)
                lifecycle.prune(context)
        case "down":
            with context.cache.locked(say=say):
                lifecycle.down(context, purge=arguments.purge)
        case "status":
            return 0 if lifecycle.status(context) else 1
        case "env":
            for name, value in lifecycle.environment(context).items():
                print(f"export {name}={shlex.quote(value)}")
        case "images":
            with context.cache.locked(say=say):
                images.prepare(context)
                images.load(context, images.build(context), output=arguments.output)
                lifecycle.prune(context)
        case "kubectl":
            rest = arguments.arguments[1:] if arguments.arguments[:1] == ["--"] else arguments.arguments
            variables = dict(os.environ, **lifecycle.environment(context))
            return subprocess.run(["kubectl", *rest], env=variables, check=False).returncode
    return 0


def up(context: Context, *, recreate: bool, with_images: bool) -> None:
    """The cluster, and if asked our images: pip waits for the network while Go uses the processors."""
    if not with_images:
        lifecycle.up(context, recreate=recreate)
        return
    images.prepare(context)
    with ThreadPoolExecutor(max_workers=1) as pool:
        built = pool.submit(images.build, context)
        lifecycle.up(context, recreate=recreate)
        images.load(context, built.result())


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point."""
    arguments = parser().parse_args(argv)
    progress = Progress()
    try:
        chosen = settings.from_environment(os.environ, home=Path.home(), provider=arguments.provider)
        if os.environ.get("DOCKER_HOST") == private_socket(chosen.engine_home):
            # A shell that ran `env`: our own engine must not pass for one that was there before us.
            del os.environ["DOCKER_HOST"]
        context = Context(settings=chosen, cache=Cache(chosen.cache), machine=machine.observe(), progress=progress)
        return dispatch(arguments, context)
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())

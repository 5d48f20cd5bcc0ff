"""``make up``: from nothing to a verified service that streams an answer, showing what it does and how long it takes.

Each step finds out by itself whether there is anything to do, so running it again is quick and safe.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

from e2e import example, install
from e2e.cluster import lifecycle, machine, settings
from e2e.cluster.content import Cache
from e2e.cluster.errors import ClusterError
from e2e.cluster.lifecycle import Context
from e2e.cluster.progress import Progress

QUESTION = "In one sentence, what is a lighthouse for?"

NEXT = """
What to type next (export KUBECONFIG={kubeconfig}; PATH has kubectl in {bin}):
  kubectl get psvc -n demo                     what serves: revision, fingerprint, readiness
  kubectl describe psvc smollm2 -n demo        conditions and events, with the reason when a pod is refused
  .venv/bin/pratique status smollm2 -n demo    the same for people
  .venv/bin/pratique chat smollm2 -n demo --temperature 0    talk to it; at the default of 1 so small a model wanders
  make down                                    delete the cluster (caches stay)
"""


def make_context() -> Context:
    progress = Progress()
    chosen = settings.from_environment(os.environ, home=Path.home())
    return Context(settings=chosen, cache=Cache(chosen.cache), machine=machine.observe(), progress=progress)


def up(context: Context, *, with_example: bool) -> None:
    """Cluster, images, operator and (unless told otherwise) the example service."""
    context.settings.models.mkdir(parents=True, exist_ok=True)
    cluster = subprocess.run([sys.executable, "-m", "e2e.cluster", "up", "--images"], check=False)
    if cluster.returncode != 0:
        raise ClusterError("The cluster did not come up; the lines above say why")
    install.install(context)
    if with_example:
        example.deploy(context)


def chat(context: Context) -> None:
    """One streamed answer through the released path, as a person would ask for it. Greedy: at the default temperature of 1 a model this
    small wanders off into nonsense, which looks like a broken engine."""
    context.progress.say(f"Asking {example.NAME}: {QUESTION}")
    asked = [example.NAME, "-n", example.NAMESPACE, QUESTION, "--temperature", "0"]
    command = [sys.executable, "-m", "pratique_cli", "chat", *asked]
    environment = dict(os.environ, **lifecycle.environment(context))
    subprocess.run(command, env=environment, check=True, timeout=120)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m e2e.up", description=__doc__)
    parser.add_argument("--no-chat", action="store_true", help="stop when the example is verified")
    parser.add_argument("--no-example", action="store_true", help="stop when the operator runs")
    arguments = parser.parse_args()
    context = make_context()
    try:
        up(context, with_example=not arguments.no_example)
        if not (arguments.no_chat or arguments.no_example):
            chat(context)
            print(NEXT.format(kubeconfig=context.settings.kubeconfig, bin=context.tools))
    except (ClusterError, RuntimeError, subprocess.SubprocessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

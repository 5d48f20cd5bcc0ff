"""Install the operator into the cluster as a person would: CRD, then the chart, with the images that were just built.

Every step is a no-op when nothing changed, so that a second ``make up`` costs seconds.
"""

import json
from pathlib import Path

from e2e.cluster import gobuild
from e2e.cluster.lifecycle import Context
from e2e.cluster.pins import REPOSITORY, GoModule
from e2e.cluster.progress import run
from e2e.support.kube import environment, kubectl

NAMESPACE = "pratique-system"
RELEASE = "pratique"
HELM = GoModule(name="helm", packages=("helm.sh/helm/v3/cmd/helm",), usual_s=90)


def helm(context: Context) -> Path:
    """The helm program, built from its pinned module."""
    version = gobuild.go_version()
    folder = gobuild.build(context.cache, HELM, version=version, progress=context.progress, logs=context.settings.logs)
    return folder / "helm"


def read_images(context: Context) -> dict[str, str]:
    """References of the images in the node, as the image step wrote them."""
    images: dict[str, str] = json.loads((context.settings.cache / "images.json").read_text(encoding="utf-8"))
    return images


def install(context: Context) -> None:
    """CRD by server-side apply (helm installs CRDs once and never upgrades them), chart by ``helm upgrade --install``."""
    program = helm(context)
    images = read_images(context)
    with context.progress.step("Installing the CRD and the operator", usual_s=20):
        kubectl("apply", "--server-side", "--force-conflicts", "-f", str(REPOSITORY / "crds"))
        kubectl("wait", "--for=condition=Established", "crd/inferenceservices.serving.pratique.dev", "--timeout=60s")
        run(
            [
                program,
                "upgrade",
                "--install",
                RELEASE,
                REPOSITORY / "charts" / "pratique",
                f"--namespace={NAMESPACE}",
                "--create-namespace",
                "--skip-crds",
                f"--set=image={images['operator']}",
                f"--set=serverImage={images['server']}",
                "--set=allowFileSources=true",
                "--wait",
                "--timeout=3m",
            ],
            log=context.settings.logs / "helm.log",
            env=environment(),
        )

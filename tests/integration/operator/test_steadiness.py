"""Nothing moves when nothing changes, however often the operator looks."""

import json
import time
from typing import Any

import pytest

from pratique_contract import constants
from tests.integration.operator.world import World

pytestmark = pytest.mark.integration


FULL_TEMPLATE: dict[str, Any] = {
    "metadata": {"labels": {"team": "a"}, "annotations": {"example/note": "b"}},
    "spec": {
        "resources": {"requests": {"cpu": "1000m", "memory": "1024Mi"}, "limits": {"memory": "2048Mi"}},
        "env": [
            {"name": "A", "value": "1"},
            {"name": "B", "valueFrom": {"secretKeyRef": {"name": "ref", "key": "k"}}},
            {"name": "C", "valueFrom": {"configMapKeyRef": {"name": "ref", "key": "k"}}},
        ],
        "volumes": [
            {"name": "a", "configMap": {"name": "ref", "items": [{"key": "k", "path": "file"}]}},
            {"name": "b", "secret": {"secretName": "ref"}},
            {"name": "c", "emptyDir": {"medium": "Memory", "sizeLimit": "1024Mi"}},
        ],
        "volumeMounts": [
            {"name": "a", "mountPath": "/mnt/a", "readOnly": False},
            {"name": "b", "mountPath": "/mnt/b", "readOnly": True},
            {"name": "c", "mountPath": "/dev/shm"},
        ],
        "affinity": {
            "podAntiAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {
                        "weight": 1,
                        "podAffinityTerm": {
                            "topologyKey": "kubernetes.io/hostname",
                            "labelSelector": {"matchLabels": {"team": "a"}},
                        },
                    }
                ]
            }
        },
    },
}


def test_no_write_over_several_resyncs(quick_world: World) -> None:
    """LLMKube#1139: two owners of one field, an endless rollout. Here: not one resource version moves."""
    world = quick_world
    for kind, field in (("ConfigMap", "data"), ("Secret", "stringData")):
        world.apply({"apiVersion": "v1", "kind": kind, "metadata": {"name": "ref"}, field: {"k": "v"}})
    world.create(replicas=2, template=FULL_TEMPLATE)
    world.wait_ready()
    before = world.settle()
    world.passes(4)
    assert world.versions() == before
    assert len(before) == 8


def test_no_write_for_what_the_server_leaves_out_of_a_claims_mount(quick_world: World) -> None:
    """It stores no ``readOnly: false``; a pass that missed it would apply again, for ever."""
    world = quick_world
    own = {"name": "d", "persistentVolumeClaim": {"claimName": "own", "readOnly": False}}
    mount = {"name": "d", "mountPath": "/mnt/d", "subPath": "x", "readOnly": False}
    world.create(template={"spec": {"volumes": [own], "volumeMounts": [mount]}})
    world.wait_reason("InvalidSpec")  # there is no such claim
    before = world.settle()
    world.passes(2)
    assert world.versions() == before


def test_no_write_while_a_candidate_fails(quick_world: World) -> None:
    world = quick_world
    world.create()
    world.wait_ready()
    stable = world.target()
    world.kubelet.outcomes[world.namespace] = lambda pod: (
        "ready" if pod["metadata"]["labels"][constants.LABEL_REVISION] == stable else "crashing"
    )
    world.create(engine={"image": "localhost/none:2"})
    world.wait_reason("CrashLooping")
    before = world.settle()
    world.passes(4)
    assert world.versions() == before


def test_operator_restarted_again_and_again_in_mid_creation_converges(quick_world: World) -> None:
    world = quick_world
    world.operator.stop()
    world.create(replicas=2)
    for milliseconds in (60, 120, 180, 260):
        world.operator.start()
        time.sleep(milliseconds / 1000)
        world.operator.stop()
    world.operator.start()
    world.wait_ready()
    before = world.settle()
    world.operator.stop()
    world.operator.start()
    world.passes(4)
    assert world.versions() == before


def test_any_text_of_a_template_reaches_the_pod_unchanged(quick_world: World) -> None:
    """Applied objects are read as YAML: emojis and control characters must survive, and nothing is written twice for them."""
    world = quick_world
    text = "{{ '\U0001f600' }} \x7f \x9b \ufeff \u2028 \\ud83d ünïcödé \t end \n"
    world.create(chatTemplate={"inline": text})
    world.wait_ready()
    config = world.children()[f"ConfigMap/svc-{world.target()}"]
    assert json.loads(config["data"][constants.SERVING_FILE])["chatTemplate"] == text
    before = world.settle()
    world.passes(4)
    assert world.versions() == before

"""The same release in another place, form, company or moment gets ready. Beside it: mutants without effect, and what nobody can see."""

from pathlib import Path
from typing import Any

import pytest

from tests.integration.server.running import serving_process
from tests.mutation.fault import Variation
from tests.mutation.harmless import ENVIRONMENTS, HARMLESS, HOST
from tests.mutation.limits import EQUIVALENT, LIMITS
from tests.mutation.releases import Releases
from tests.mutation.scene import Scene, judge
from tests.support.ports import free_ports

# A whole process with its engine process: seconds on a quiet machine, a minute on one that is shared by many.
START_SECONDS_MAX = 200.0

CASES = [
    (kind, variation)
    for kind, variations in (("harmless", HARMLESS), ("equivalent", EQUIVALENT), ("limit", LIMITS))
    for variation in variations
]


def _row(row: dict[str, Any], number: int, kind: str, name: str, why: str, verdict: dict[str, Any]) -> None:
    row |= {"kind": kind, "number": 10_000 + number, "name": name, "why": why}
    row |= {"reason": verdict["reason"], "result": verdict["result"], "message": verdict["message"]}


@pytest.mark.timeout(START_SECONDS_MAX + 40)  # one of them restarts an engine process
@pytest.mark.parametrize(
    ("number", "kind", "variation"),
    [(number, *case) for number, case in enumerate(CASES)],
    ids=[f"{kind}: {variation.name}" for kind, variation in CASES],
)
def test_what_is_no_fault_or_cannot_be_seen_gets_ready(
    number: int,
    kind: str,
    variation: Variation,
    releases: Releases,
    row: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(releases.get(variation.base), tmp_path, monkeypatch)
    variation.arrange(scene)
    with judge(scene) as judged:
        _row(row, number, kind, variation.name, variation.why, judged.verdict)
        if variation.refused is not None:
            assert judged.verdict["reason"] == variation.refused
            return
        assert judged.verdict["result"] == "Pass", judged.verdict["message"]
        assert judged.verdict["approved"] is True
        assert judged.server.probe("readyz")[0] == 200
        assert judged.after == variation.status
        if variation.act is not None:
            variation.act(judged)


@pytest.mark.timeout(START_SECONDS_MAX + 40)
@pytest.mark.parametrize(("number", "name"), list(enumerate(ENVIRONMENTS)), ids=list(ENVIRONMENTS))
def test_another_environment_gets_ready(
    number: int, name: str, releases: Releases, row: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(releases.get("tiny"), tmp_path, monkeypatch)
    port, management = free_ports(2)
    scene.declare(api_port=port, management_port=management)
    environment = {key: value.format(room=tmp_path) for key, value in ENVIRONMENTS[name].items()}
    with serving_process(scene.spec(), tmp_path, environment=environment) as (server, _, log):
        server.wait_ready(seconds=START_SECONDS_MAX)
        _row(row, 5000 + number, "harmless", name, HOST, server.verdict())
        assert server.verdict()["result"] == "Pass", log.read_text()[-2000:]


def test_there_are_at_least_forty_harmless_variations() -> None:
    names = [variation.name for _, variation in CASES]
    assert len(set(names)) == len(names)
    assert len(HARMLESS) + len(ENVIRONMENTS) >= 40

"""Every wrong artefact, computation and stream is refused before the first user's request, and for the right reason."""

from pathlib import Path
from typing import Any

import pytest

from tests.mutation.fault import Fault
from tests.mutation.faults import FAULTS
from tests.mutation.releases import Releases
from tests.mutation.scene import Scene, judge


@pytest.mark.req("R126", "R127", "R128")
@pytest.mark.parametrize(("number", "fault"), list(enumerate(FAULTS)), ids=[fault.id for fault in FAULTS])
def test_a_fault_is_refused_before_the_first_user_request(
    number: int,
    fault: Fault,
    releases: Releases,
    row: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(releases.get(fault.base), tmp_path, monkeypatch)
    fault.arrange(scene)
    with judge(scene) as judged:
        verdict, statuses = judged.verdict, [*judged.meanwhile, judged.after]
        row |= {"kind": "fault", "number": number, "part": fault.part, "name": fault.name, "bug": fault.bug}
        row |= {"expected": str(fault.reason), "reason": verdict["reason"], "result": verdict["result"]}
        row |= {"message": verdict["message"], "knocks": len(statuses)}
        row |= {"answered": sum(status not in (503, None) for status in statuses)}
        assert (verdict["result"], verdict["reason"]) == ("Fail", fault.reason), verdict["message"]
        assert not row["answered"], "a user was answered"
        status, line = judged.server.probe("readyz")
        assert (status, line.split(":")[0]) == (503, fault.reason)
        assert judged.server.probe("livez")[0] == 200


def test_every_part_the_computation_and_the_stream_have_faults_of_every_kind() -> None:
    """The promise of the suite, so that a table that is cut down does not go unnoticed."""
    parts = [fault.part for fault in FAULTS]
    least = {
        "model": 60, "adapters": 15, "tokenizer": 20, "chatTemplate": 15, "specialTokens": 15, "quantization": 10,
        "engine": 8, "servingFlags": 8, "computation": 40, "stream": 60, "request path": 12,
    }  # fmt: skip
    assert {part: parts.count(part) for part in least if parts.count(part) < least[part]} == {}
    assert set(parts) == set(least)

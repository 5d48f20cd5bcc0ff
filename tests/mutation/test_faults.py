"""Every wrong artefact, computation and stream is refused before the first user's request, and for the right reason."""

from pathlib import Path
from typing import Any

import pytest

from tests.mutation.fault import Fault
from tests.mutation.faults import FAULTS
from tests.mutation.releases import Releases
from tests.mutation.scene import Scene, judge


@pytest.mark.req("R126", "R127", "R128")
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)
def test_a_fault_is_refused_before_the_first_user_request(
    fault: Fault, releases: Releases, row: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(releases.get(fault.base), tmp_path, monkeypatch)
    fault.arrange(scene)
    with judge(scene) as judged:
        verdict = judged.verdict
        row |= {"kind": "fault", "part": fault.part, "name": fault.name, "bug": fault.bug, "expected": fault.reason}
        row |= {"result": verdict["result"], "reason": verdict["reason"], "message": verdict["message"]}
        row |= {"knocks": len(judged.meanwhile), "durationMs": verdict["durationMs"]}
        assert (verdict["result"], verdict["reason"]) == ("Fail", fault.reason), verdict["message"]
        assert {*judged.meanwhile, judged.after} <= {503, None}, "a user was answered"
        assert judged.server.probe("readyz") == (503, f"{fault.reason}: {verdict['message']}".splitlines()[0])
        assert judged.server.probe("livez")[0] == 200

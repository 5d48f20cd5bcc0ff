"""A few faults of the suite, one of each part that the integration tests do not cover otherwise: quick enough for every run."""

from pathlib import Path

import pytest

from tests.mutation.faults import FAULTS
from tests.mutation.releases import Releases
from tests.mutation.scene import Scene, judge

SAMPLE = (
    "adapters: the other order",
    "engine: another tokenizers",
    "computation: K/V lost after 512 tokens, one key tile",
    "computation: cache shared with a batch neighbour",
    "computation: a token given twice",
    "request path: a stale template in the request path",
    "stream: finish missing",
    "stream: a body that claims to be compressed",
)


@pytest.mark.req("R126", "R127")
@pytest.mark.parametrize("name", SAMPLE)
def test_a_fault_of_each_part_is_refused_for_its_reason(
    name: str, releases: Releases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = next(fault for fault in FAULTS if fault.id == name)
    scene = Scene(releases.get(fault.base), tmp_path, monkeypatch)
    fault.arrange(scene)
    with judge(scene) as judged:
        assert (judged.verdict["result"], judged.verdict["reason"]) == ("Fail", fault.reason), judged.verdict["message"]
        assert {*judged.meanwhile, judged.after} <= {503, None}

"""A review's workload test: two releases served by programs of their own, loaded in turns."""

import asyncio
from pathlib import Path

import pytest

from pratique_cli.review.workload import LIMITS, Pace, run_workload
from pratique_server.offline.loading import build_release
from tests.integration.server.running import make_spec


@pytest.mark.req("R53", "R132")
@pytest.mark.timeout(240)
async def test_a_changed_scheduler_flag_is_measured_on_two_served_releases(tiny_model_dir: Path) -> None:
    specs = [make_spec(tiny_model_dir, engine={"max_num_seqs": seats}) for seats in (16, 8)]
    manifests = [await build_release(spec) for spec in specs]
    # The machine that runs this may be doing anything else: what is proved is that figures are taken and held to limits.
    wide = {f"Workload.{name}": 0.0 if name.endswith("Min") else 100.0 for name in LIMITS if name != "errorRateMax"}
    measured = await asyncio.to_thread(
        run_workload,
        (specs[0], specs[1]),
        (manifests[0], manifests[1]),
        wide,
        lambda _: None,
        pace=Pace(rounds=2, seconds_min=0.8, seconds_max=0.8),
    )
    assert measured.test.passed, measured.test.message
    assert set(measured.test.measurements) >= {name[:-3] for name in LIMITS}
    assert measured.candidate["tenants"]["light"]["ttftMs"]["samples"] > 0

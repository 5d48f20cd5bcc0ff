"""The line a person reads while a download runs."""

from pratique_contract.reasons import Reason
from pratique_contract.verdict import VerdictResult
from pratique_server.fetch.progress import Progress, describe, size_text


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_tells_done_total_percent_rate_and_time_left() -> None:
    clock = Clock()
    progress = Progress(clock=clock)
    progress.start("Downloading hf://o/n", total=4 * 1024**3, done=1024**3)
    clock.now = 10.0
    progress.add(1024**3)
    assert progress.line() == "Downloading hf://o/n: 2.0 GiB of 4.0 GiB (50 %), 107.4 MB/s, about 20 s left"


def test_the_rate_is_that_of_the_last_half_minute() -> None:
    clock = Clock()
    progress = Progress(clock=clock)
    progress.start("x", total=10**9)
    progress.add(10**8)
    for clock.now in range(1, 100):
        progress.line()
    assert "0.0 MB/s" in progress.line()


def test_a_remark_holds_for_its_time_only() -> None:
    clock = Clock()
    progress = Progress(clock=clock)
    progress.start("x", total=100)
    progress.note("asked to wait 5 s", seconds=5)
    assert progress.line().endswith("; asked to wait 5 s")
    clock.now = 6.0
    assert "asked" not in progress.line()


def test_is_a_pending_verdict_with_reason_downloading() -> None:
    verdict = Progress().current()
    assert (verdict.result, verdict.reason) == (VerdictResult.PENDING, Reason.DOWNLOADING)


def test_sizes_are_in_the_unit_a_person_would_use() -> None:
    assert [size_text(n) for n in (0, 1023, 1024, 5 * 1024**2, 3 * 1024**4)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "5.0 MiB",
        "3.0 TiB",
    ]


def test_an_unknown_total_and_an_empty_one_are_no_trouble() -> None:
    assert describe(1024, None, 0.0) == "1.0 KiB, 0.0 MB/s"
    assert describe(0, 0, 0.0) == "0 B of 0 B (100 %), 0.0 MB/s"

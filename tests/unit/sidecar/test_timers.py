"""When a step has waited too long, by clocks that a test turns: the wall clock counts once, then the monotonic one."""

from __future__ import annotations

from stream_metrics.core.fold import Fold
from stream_metrics.core.settings import FoldSettings
from stream_metrics.sidecar.timers import Timers, marker
from stream_metrics.testing import MemoryLog, close, sample

START_MS = 1_700_000_000_000
IDLE, GRACE = 100.0, 10.0


class Bench:
    """A log, its fold, and timers that look at it when the test says so."""

    def __init__(self) -> None:
        self.log = MemoryLog()
        self.fold = Fold(FoldSettings(), "t", 0)
        self.timers = Timers(IDLE, GRACE)
        self.now = 5_000.0
        self.unix_ms = START_MS

    def add(self, event: dict[str, object] | None, unix_ms: int | None = None) -> None:
        self.fold.feed([self.log.append(event, unix_ms=self.unix_ms if unix_ms is None else unix_ms)])

    def due(self, after_seconds: float = 0.0) -> list[int]:
        self.now += after_seconds
        self.unix_ms += int(after_seconds * 1000)
        return [window.step for window in self.timers.due(self.fold, self.now, self.unix_ms)]

    def write_markers(self, after_seconds: float = 0.0) -> list[int]:
        """Appends the markers that are due, as the shell does."""
        self.now += after_seconds
        self.unix_ms += int(after_seconds * 1000)
        windows = self.timers.due(self.fold, self.now, self.unix_ms)
        for window in windows:
            event = marker(window, "timeout")
            self.add(
                close(event.step, reason=event.reason, seen_offset=event.seen_offset, run_id=event.run_id or "default")
            )
        return [window.step for window in windows]

    def restarted(self) -> Bench:
        """The same log under new timers, whose monotonic clock has nothing to do with the old one."""
        another = Bench()
        another.log, another.unix_ms, another.now = self.log, self.unix_ms, 1.0
        another.fold.feed(self.log.records)
        return another


def test_a_step_waits_for_its_next_sample_as_long_as_it_may() -> None:
    bench = Bench()
    bench.add(sample(1, 1.0))
    assert bench.due() == []
    assert bench.due(IDLE - 1) == []
    assert bench.due(1) == [1]


def test_each_new_sample_starts_the_wait_over() -> None:
    bench = Bench()
    bench.add(sample(1, 1.0))
    assert bench.due() == []
    for _ in range(5):
        assert bench.due(IDLE - 1) == []
        bench.add(sample(1, 1.0))
        assert bench.due() == []
    assert bench.due(IDLE - 1) == []
    assert bench.due(1) == [1]


def test_a_step_is_asked_for_once_until_something_new_is_in_it() -> None:
    bench = Bench()
    bench.add(sample(1, 1.0))
    assert bench.due() == []
    assert bench.due(IDLE) == [1]
    assert bench.due(IDLE) == []
    bench.add(sample(1, 1.0))
    assert bench.due(1) == []
    assert bench.due(IDLE) == [1]


def test_markers_that_were_not_written_are_asked_for_again() -> None:
    bench = Bench()
    bench.add(sample(1, 1.0))
    bench.due()
    assert bench.due(IDLE) == [1]
    bench.timers.ask_again()
    assert bench.due(0.1) == [1]


def test_a_closing_step_waits_for_the_grace_time_and_samples_do_not_start_it_over() -> None:
    bench = Bench()
    bench.add(sample(1, 1.0))
    bench.due()
    bench.add(close(1, expected_samples=10))
    assert bench.due() == []
    for _ in range(3):
        assert bench.due(GRACE / 4) == []
        bench.add(sample(1, 1.0))
    assert bench.due(GRACE / 4) == [1]


def test_the_grace_time_of_a_restarted_replica_goes_on_from_the_first_marker() -> None:
    bench = Bench()
    bench.add(close(1, producers=2))
    bench.due(GRACE - 1)
    again = bench.restarted()
    assert again.due() == []
    assert again.due(1) == [1]


def test_the_idle_time_of_a_restarted_replica_goes_on_from_the_newest_sample() -> None:
    bench = Bench()
    bench.add(sample(1, 1.0))
    bench.due(30)
    bench.add(sample(1, 1.0))
    bench.due(IDLE - 1)
    again = bench.restarted()
    assert again.due() == []
    assert again.due(1) == [1]


def test_what_was_due_long_ago_is_due_at_the_first_look() -> None:
    bench = Bench()
    bench.add(sample(1, 1.0))
    bench.unix_ms += 10 * int(IDLE) * 1000
    assert bench.due() == [1]


def test_timestamps_count_at_the_first_look_only() -> None:
    bench = Bench()
    assert bench.due() == []
    bench.add(sample(1, 1.0), unix_ms=START_MS - 10**9)  # resent from a spool, say: old, but new to the log
    assert bench.due() == []
    assert bench.due(IDLE - 1) == []
    assert bench.due(1) == [1]


def test_a_wall_clock_that_jumps_changes_nothing() -> None:
    bench = Bench()
    bench.add(sample(1, 1.0))
    assert bench.due() == []
    bench.unix_ms += 3_600_000
    assert bench.due(1) == []
    bench.unix_ms -= 7_200_000
    assert bench.due(1) == []
    assert bench.due(IDLE) == [1]


def test_a_timestamp_of_the_future_or_of_no_clock_waits_from_now_on() -> None:
    for unix_ms in (START_MS + 10**9, -1, 0, 1, 10**17, 2**62):
        bench = Bench()
        bench.add(sample(1, 1.0), unix_ms=unix_ms)
        assert bench.due() == [], unix_ms
        assert bench.due(IDLE - 1) == []
        assert bench.due(1) == [1]


def test_steps_wait_each_on_its_own() -> None:
    bench = Bench()
    bench.add(sample(1, 1.0))
    bench.due()
    bench.unix_ms += 50_000
    bench.now += 50
    bench.add(sample(2, 1.0, run_id="another"))
    assert bench.due() == []
    assert bench.due(50) == [1]
    assert bench.due(50) == [2]


def test_the_marker_closes_the_step_that_waited() -> None:
    bench = Bench()
    bench.add(sample(1, 1.0))
    bench.due()
    assert bench.write_markers(IDLE) == [1]
    outcome = bench.log.fold()
    (result,) = outcome.results
    assert (result.complete, result.reason) == (False, "timeout")
    assert bench.due(10 * IDLE) == []


def test_a_marker_for_a_step_that_moved_on_does_nothing() -> None:
    bench = Bench()
    bench.add(sample(1, 1.0))
    bench.due()
    bench.now += IDLE
    (window,) = bench.timers.due(bench.fold, bench.now, bench.unix_ms)
    event = marker(window, "timeout")
    assert event.seen_offset == 0
    bench.add(sample(1, 0.0))  # overtakes the marker
    bench.add(close(1, reason="timeout", seen_offset=event.seen_offset))
    outcome = bench.log.fold()
    assert outcome.results == [] and outcome.dead_letters == []
    assert outcome.open_steps == [("default", "rollout", 0, 1)]


def test_two_replicas_that_race_close_a_step_once() -> None:
    bench = Bench()
    bench.add(sample(1, 1.0))
    bench.due()
    bench.now += IDLE
    (window,) = bench.timers.due(bench.fold, bench.now, bench.unix_ms)
    seen = window.last_offset
    for _ in range(2):
        bench.add(close(1, reason="timeout", seen_offset=seen))
    outcome = bench.log.fold()
    assert [(one.reason, one.correction) for one in outcome.results] == [("timeout", False)]
    assert outcome.dead_letters == []


def test_a_marker_for_lost_data_always_acts() -> None:
    bench = Bench()
    bench.add(sample(1, 1.0))
    (window,) = bench.fold.open_windows()
    assert marker(window, "data_lost").seen_offset is None


def test_a_marker_names_its_window_in_full() -> None:
    bench = Bench()
    bench.add(sample(1, 1.0, run_id="r", scope="eval/x", attempt=3))
    (window,) = bench.fold.open_windows()
    event = marker(window, "timeout")
    assert (event.run_id, event.scope, event.attempt, event.step) == ("r", "eval/x", 3, 1)


def test_waits_of_closed_steps_are_not_kept() -> None:
    bench = Bench()
    for step in range(1_000):
        bench.add(sample(step, 1.0))
        bench.due()
        bench.add(close(step))
        bench.due()
    assert len(bench.timers._waits) == 0

"""A log whose beginning is gone: what is still whole goes on, what isn't is closed and said."""

from __future__ import annotations

from stream_metrics.core.effects import Publish, SetAside
from stream_metrics.core.fold import Fold
from stream_metrics.core.settings import FoldSettings
from stream_metrics.sidecar.owned import Owned
from stream_metrics.sidecar.timers import Timers
from stream_metrics.testing import MemoryLog, close, sample


def a_log() -> MemoryLog:
    log = MemoryLog()
    log.append(sample(1, 1.0))  # 0
    log.append(sample(1, 0.0))  # 1
    log.append(close(1))  # 2
    log.append(sample(2, 1.0))  # 3
    log.append(sample(1, 0.5))  # 4: late
    log.append(sample(2, 0.0))  # 5
    return log


def taken_over(log: MemoryLog, low: int) -> Owned:
    """Returns the partition as a replacement has it that finds the log cut below `low`."""
    before = Fold(FoldSettings(), log.topic, log.partition)
    before.feed(log.records)
    before.take_corrections()
    committed = log.next_offset
    owned = Owned(
        FoldSettings(),
        log.topic,
        log.partition,
        start=low,
        committed=committed,
        note=before.note(committed),
        timers=Timers(3600, 60),
        is_cut=True,
    )
    owned.feed(log.between(low, committed))
    owned.reach_end(committed)
    return owned


def lost_steps(owned: Owned) -> list[int]:
    return [window.step for window in owned.lost_windows]


def test_an_open_step_that_is_whole_goes_on_when_only_closed_ones_were_hit():
    log = a_log()
    owned = taken_over(log, low=2)
    assert lost_steps(owned) == []
    log.append(close(2))
    owned.feed(log.records[-1:])
    [published] = [effect for effect in owned.pending if isinstance(effect, Publish)]
    assert published.result.complete
    assert published.result.metrics["rollout/num_training_samples"] == 2


def test_a_closed_step_that_was_hit_is_never_published_again():
    log = a_log()
    owned = taken_over(log, low=2)
    log.append(sample(1, 0.0))
    owned.feed(log.records[-1:])
    owned.gather(owned.fold.take_corrections())
    assert [type(effect) for effect in owned.pending] == [SetAside]


def test_steps_are_lost_when_a_closed_one_looks_open_for_want_of_its_marker():
    assert lost_steps(taken_over(a_log(), low=3)) == [2, 1]


def test_an_open_step_that_was_hit_is_lost():
    assert lost_steps(taken_over(a_log(), low=4)) == [1, 2]


def test_a_step_that_was_lost_stays_incomplete_whatever_comes():
    log = a_log()
    owned = taken_over(log, low=4)
    log.append(close(2, reason="data_lost"))
    log.append(close(2))
    owned.feed(log.records[-2:])
    [published] = [effect for effect in owned.pending if isinstance(effect, Publish)]
    assert (published.result.reason, published.result.complete) == ("data_lost", False)

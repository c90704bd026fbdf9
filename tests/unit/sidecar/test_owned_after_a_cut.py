"""A log whose beginning is gone, read or unread: what is still whole goes on, what isn't is closed and said."""

from __future__ import annotations

from stream_metrics.core.effects import Publish, SetAside
from stream_metrics.core.fold import Fold
from stream_metrics.core.replay_note import decode_note
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


# --- lost unread ------------------------------------------------------------------------------------------------------


def a_reader(log: MemoryLog, *, of_all: bool = True) -> Owned:
    """Returns the partition as the first replica has it."""
    owned = Owned(
        FoldSettings(remember_steps=1),
        log.topic,
        log.partition,
        start=0 if of_all else log.next_offset,
        committed=-1,
        note=None,
        timers=Timers(3600, 60),
    )
    if of_all:
        read(owned, log)
    return owned


def read(owned: Owned, log: MemoryLog) -> list[tuple[int, bool, str]]:
    """Reads to the end and returns step, completeness and reason of what is published of it."""
    owned.feed(log.between(owned.next_offset, log.next_offset))
    results = [effect.result for effect in owned.pending if isinstance(effect, Publish)]
    owned.pending.clear()
    return [(one.step, one.complete, one.reason) for one in results]


def replaced(owned: Owned, log: MemoryLog, low: int) -> Owned:
    """Returns the partition as a replacement has it."""
    offset = owned.offset_to_commit()
    note = decode_note(offset.metadata)
    again = Owned(
        FoldSettings(remember_steps=1),
        log.topic,
        log.partition,
        start=max(low, note.replay_from),
        committed=offset.offset,
        note=note,
        timers=Timers(3600, 60),
        is_cut=note.replay_from < low,
    )
    again.feed(log.between(again.next_offset, offset.offset))
    again.reach_end(offset.offset)
    return again


def append(log: MemoryLog, *events) -> int:
    for event in events:
        log.append(event)
    return log.next_offset


def test_open_steps_are_closed_with_what_they_had():
    log = MemoryLog()
    append(log, sample(1, 1.0), sample(1, 0.0))
    owned = a_reader(log)
    owned.lose(append(log, sample(1, 0.5)))
    assert lost_steps(owned) == [1] and owned.wants_commit_now and owned.has_moved
    append(log, close(1, reason="data_lost"))
    assert read(owned, log) == [(1, False, "data_lost")]


def test_a_step_that_may_have_begun_unseen_is_whole_only_by_its_count():
    log = MemoryLog()
    append(log, sample(1, 1.0), close(1))
    for told, whole in ((None, False), (1, True), (2, None)):
        owned = a_reader(log)
        mine = MemoryLog()
        owned.lose(append(mine, *[sample(2, 1.0)] * 3))
        append(mine, sample(2, 1.0), close(2, **({} if told is None else {"expected_samples": told})))
        results = read(owned, mine)
        assert results == ([] if whole is None else [(2, whole, "closed" if whole else "data_lost")])


def test_the_step_after_the_first_that_was_closed_is_whole_also_over_restarts():
    log = MemoryLog()
    owned = a_reader(log, of_all=False)
    low = append(log, sample(2, 1.0))
    owned.lose(low)
    append(log, sample(2, 1.0), sample(3, 1.0), close(2))
    assert read(owned, log) == [(2, False, "data_lost")]
    owned = replaced(owned, log, low)
    append(log, close(3))
    assert read(owned, log) == [(3, False, "data_lost")]  # it was open when step 2 closed
    owned = replaced(owned, log, low)
    append(log, sample(4, 1.0), close(4))
    assert read(owned, log) == [(4, True, "closed")]
    [floor] = decode_note(owned.offset_to_commit().metadata).floors
    assert floor.whole_from == 0  # nothing doubtful is held any more, so the note needn't say it


def test_a_step_from_before_the_loss_says_nothing_about_the_next():
    """Its other producer may have been a step ahead, with samples that are lost."""
    log = MemoryLog()
    append(log, sample(1, 1.0), close(1, producer="a", producers=2))
    owned = a_reader(log)
    low = append(log, sample(2, 1.0))
    owned.lose(low)
    append(log, close(1, producer="b", producers=2), sample(2, 1.0), close(2))
    assert read(owned, log) == [(1, False, "data_lost"), (2, False, "data_lost")]


def test_nor_does_it_where_it_is_rebuilt_from_what_came_after_the_loss():
    log = MemoryLog()
    append(log, sample(1, 1.0))
    owned = a_reader(log)
    low = append(log, sample(2, 1.0))
    owned.lose(low)
    append(log, sample(1, 1.0), close(1))
    read(owned, log)
    owned = replaced(owned, log, low)
    append(log, sample(2, 1.0), close(2))
    assert read(owned, log) == [(2, False, "data_lost")]


def test_a_closed_step_takes_no_late_samples_after_a_loss():
    log = MemoryLog()
    append(log, sample(1, 1.0), close(1))
    owned = a_reader(log)
    read(owned, log)
    owned.lose(append(log, sample(1, 1.0)))
    append(log, sample(1, 1.0))
    owned.feed(log.between(owned.next_offset, log.next_offset))
    owned.gather(owned.fold.take_corrections())
    assert [effect.reason for effect in owned.pending if isinstance(effect, SetAside)] == ["late"]
    assert len(owned.pending) == 1


def test_a_run_that_is_new_may_have_begun_unseen_for_as_long_as_runs_are_remembered():
    log = MemoryLog()
    append(log, sample(1, 1.0, run_id="old"))
    owned = a_reader(log)
    owned.lose(append(log, sample(1, 1.0, run_id="new")))
    append(log, sample(1, 1.0, run_id="new"), close(1, run_id="new"))
    assert read(owned, log) == [(1, False, "data_lost")]
    log.append(sample(1, 1.0, run_id="newer"), skip_offsets=FoldSettings().remember_records)
    log.append(close(1, run_id="newer"))
    assert read(owned, log) == [(1, True, "closed")]


def test_a_first_start_in_the_middle_of_the_log_takes_no_step_under_way_for_whole():
    log = MemoryLog()
    append(log, sample(1, 1.0))
    owned = a_reader(log, of_all=False)
    append(log, sample(1, 1.0), close(1), sample(2, 1.0), close(2))
    assert read(owned, log) == [(1, False, "data_lost"), (2, True, "closed")]

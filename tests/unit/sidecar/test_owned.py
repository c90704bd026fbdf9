"""A partition while it is ours: what of it may be committed, and what its replay must come to."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from stream_metrics.core.effects import Publish, SetAside
from stream_metrics.core.record import Record
from stream_metrics.core.replay_note import ReplayNote, decode_note
from stream_metrics.core.settings import FoldSettings
from stream_metrics.sidecar.errors import StateRefusedError
from stream_metrics.sidecar.owned import Owned
from stream_metrics.sidecar.timers import Timers
from stream_metrics.testing import MemoryLog, close, sample

DEFAULT = FoldSettings()


def _owned(
    start: int = 0,
    committed: int = -1,
    note: ReplayNote | None = None,
    settings: FoldSettings = DEFAULT,
    *,
    is_cut: bool = False,
    accept_changed: bool = False,
) -> Owned:
    return Owned(
        settings,
        "t",
        0,
        start=start,
        committed=committed,
        note=note,
        timers=Timers(100.0, 10.0),
        is_cut=is_cut,
        accept_changed=accept_changed,
    )


def _restored(log: MemoryLog, committed: Owned, settings: FoldSettings = DEFAULT, **how: bool) -> Owned:
    """Returns the partition as a replacement has it that read the log up to what was committed."""
    offset = committed.offset_to_commit()
    note = decode_note(offset.metadata)
    again = _owned(note.replay_from, offset.offset, note, settings, **how)
    again.feed(log.between(note.replay_from, offset.offset))
    return again


def _open_step() -> tuple[MemoryLog, Owned]:
    log = MemoryLog()
    for reward in (1.0, 0.0):
        log.append(sample(5, {"a": reward}, rollout_id=1))
    owned = _owned()
    owned.feed(log.records)
    return log, owned


def _results(owned: Owned) -> list[tuple[int, bool, str]]:
    return [
        (one.result.step, one.result.correction, one.result.reason) for one in owned.pending if isinstance(one, Publish)
    ]


def test_the_next_offset_is_behind_the_newest_record() -> None:
    log = MemoryLog()
    log.append(sample(1, 1.0))
    log.append(sample(1, 1.0), skip_offsets=5)
    owned = _owned()
    assert owned.feed(log.records) == 2
    assert owned.next_offset == 7
    assert owned.has_moved


def test_the_note_of_a_commit_says_which_topic_it_is_of() -> None:
    owned = _owned()
    owned.topic_id = "A"
    owned.reach_end(9)
    assert decode_note(owned.offset_to_commit().metadata).topic_id == "A"


def test_control_records_behind_the_newest_record_count_as_read() -> None:
    owned = _owned()
    owned.reach_end(9)
    assert owned.next_offset == 9 and owned.is_caught_up and owned.has_moved
    owned.reach_end(4)
    assert owned.next_offset == 9


def test_a_record_that_comes_twice_is_folded_once() -> None:
    log = MemoryLog()
    for _ in range(4):
        log.append(sample(1, 1.0))
    owned = _owned()
    owned.feed(log.records[:3])
    assert owned.feed(log.records[1:]) == 1
    assert owned.feed(log.records) == 0
    assert owned.fold.held_samples == 4
    assert owned.next_offset == 4


def test_a_partition_that_restores_has_nothing_to_commit_and_asks_for_nothing() -> None:
    log, owned = _open_step()
    log.append(close(5))
    log.append(b"poison")
    owned.feed(log.records[2:])
    offset = owned.offset_to_commit()
    note = decode_note(offset.metadata)
    again = _owned(note.replay_from, offset.offset, note)
    assert again.is_restoring and not again.has_moved
    again.feed(log.between(0, 3))
    assert again.is_restoring and not again.has_moved and again.pending == []
    again.feed(log.between(3, 4))
    assert not again.is_restoring and not again.has_moved and again.pending == []
    assert again.next_offset == offset.offset


def test_one_batch_may_end_the_restore_and_go_on() -> None:
    log, owned = _open_step()
    offset = owned.offset_to_commit()
    log.append(sample(5, {"a": 1.0}, rollout_id=1))
    log.append(close(5))
    note = decode_note(offset.metadata)
    again = _owned(note.replay_from, offset.offset, note)
    assert again.feed(log.records) == 2
    assert _results(again) == [(5, False, "closed")]
    assert again.replayed == 2


def test_an_end_of_the_log_before_what_was_committed_ends_no_restore() -> None:
    log, owned = _open_step()
    offset = owned.offset_to_commit()
    note = decode_note(offset.metadata)
    again = _owned(note.replay_from, offset.offset, note)
    again.reach_end(1)
    assert again.is_restoring and not again.is_caught_up
    again.feed(log.records)
    assert not again.is_restoring


def test_the_end_of_the_log_ends_a_restore_whose_last_records_were_control_records() -> None:
    log, owned = _open_step()
    owned.reach_end(6)
    offset = owned.offset_to_commit()
    assert offset.offset == 6
    note = decode_note(offset.metadata)
    again = _owned(note.replay_from, offset.offset, note)
    again.feed(log.records)
    assert again.is_restoring
    again.reach_end(6)
    assert not again.is_restoring and again.next_offset == 6


def test_nothing_to_replay_is_restored_at_once() -> None:
    log = MemoryLog()
    log.append(b"poison")
    owned = _owned()
    owned.feed(log.records)
    offset = owned.offset_to_commit()
    note = decode_note(offset.metadata)
    assert note.replay_from == 1
    assert not _owned(1, offset.offset, note).is_restoring


def test_a_restored_partition_is_the_one_that_was() -> None:
    log, owned = _open_step()
    again = _restored(log, owned)
    assert again.fold.digest() == owned.fold.digest()
    log.append(close(5))
    for one in (owned, again):
        one.feed(log.records[-1:])
    assert [one.result for one in owned.pending] == [one.result for one in again.pending]  # type: ignore[union-attr]


def test_a_step_corrected_before_the_settings_changed_stops_no_restart() -> None:
    log, owned = _open_step()
    log.append(close(5))
    log.append(sample(5, {"a": 1.0}, rollout_id=1))  # late
    owned.feed(log.records[2:])
    for changed in (FoldSettings(reward_key="a"), FoldSettings(pass_threshold=0.7)):
        for _ in range(2):
            owned = _restored(log, owned, changed)
            assert not owned.is_restoring
            log.append(sample(5, {"a": 1.0}, rollout_id=1))
            owned.feed(log.records[-1:])
            assert [type(one) for one in owned.pending] == [SetAside]
            owned.pending.clear()


def test_a_log_that_is_not_the_one_it_was_is_refused_with_what_to_do() -> None:
    _, owned = _open_step()
    offset = owned.offset_to_commit()
    note = decode_note(offset.metadata)
    another = MemoryLog()
    another.append(sample(5, 1.0))
    another.append(sample(6, 1.0))
    again = _owned(note.replay_from, offset.offset, note)
    with pytest.raises(StateRefusedError, match=r"t\[0\] from 0 to 2.*not the one it was.*--accept-changed-replay"):
        again.feed(another.records)


def test_a_changed_log_goes_on_where_it_is_accepted() -> None:
    _, owned = _open_step()
    offset = owned.offset_to_commit()
    note = decode_note(offset.metadata)
    another = MemoryLog()
    another.append(sample(5, 1.0))
    another.append(sample(6, 1.0))
    again = _owned(note.replay_from, offset.offset, note, accept_changed=True)
    again.feed(another.records)
    assert not again.is_restoring
    assert [window.step for window in again.fold.open_windows()] == [5, 6]


CHANGED = FoldSettings(reward_key="a", late="correct", remember_steps=2)


def test_open_steps_follow_changed_settings_as_a_whole() -> None:
    log, owned = _open_step()
    again = _restored(log, owned, CHANGED)
    log.append(close(5))
    again.feed(log.records[-1:])
    (effect,) = again.pending
    assert isinstance(effect, Publish)
    assert effect.result.metrics["rollout/episode_raw_reward"] == 0.5
    assert effect.result.metrics["rollout/missing_rewards"] == 0


def _late(log: MemoryLog) -> Sequence[Record]:
    return [log.append(sample(5, {"a": 1.0}, rollout_id=2))]


def test_closed_steps_take_no_more_corrections_after_settings_changed_and_after_a_second_restart() -> None:
    log, owned = _open_step()
    owned.feed([log.append(close(5))])
    owned.pending.clear()
    again = _restored(log, owned, CHANGED)
    again.feed(_late(log))
    assert [(type(one), getattr(one, "reason", "")) for one in again.pending] == [(SetAside, "late")]
    assert not again.fold.has_corrections
    twice = _restored(log, again, CHANGED)
    twice.feed(_late(log))
    assert [(type(one), getattr(one, "reason", "")) for one in twice.pending] == [(SetAside, "late")]


def test_closed_steps_take_corrections_after_a_restart_with_the_same_settings() -> None:
    log, owned = _open_step()
    owned.feed([log.append(close(5))])
    owned.pending.clear()
    again = _restored(log, owned)
    again.feed(_late(log))
    again.gather(again.fold.take_corrections())
    assert _results(again) == [(5, True, "closed")]


def test_a_cut_log_closes_what_is_left_of_open_steps_and_forgets_the_closed_ones() -> None:
    log, owned = _open_step()
    for event in (sample(6, 1.0), close(6), sample(5, {"a": 1.0}), sample(7, 1.0)):
        owned.feed([log.append(event)])
    offset = owned.offset_to_commit()
    note = decode_note(offset.metadata)
    low = 3  # the close marker of step 6 is the first record left
    again = _owned(low, offset.offset, note, is_cut=True)
    again.feed(log.between(low, offset.offset))
    assert not again.is_restoring
    assert sorted(window.step for window in again.lost_windows) == [5, 7]
    assert again.wants_commit_now
    assert again.pending == []


def test_a_log_of_which_nothing_is_left_goes_on_from_its_end() -> None:
    _, owned = _open_step()
    offset = owned.offset_to_commit()
    note = decode_note(offset.metadata)
    again = _owned(10, offset.offset, note, is_cut=True)
    assert not again.is_restoring
    assert again.next_offset == 10
    assert again.lost_windows == []


def test_poison_moves_the_offset_and_waits_for_the_commit_interval() -> None:
    log = MemoryLog()
    for _ in range(3):
        log.append(b"poison")
    owned = _owned()
    owned.feed(log.records)
    assert owned.has_moved and not owned.wants_commit_now
    assert [one.reason for one in owned.pending if isinstance(one, SetAside)] == ["undecodable"] * 3


def test_a_result_wants_a_commit_at_once() -> None:
    log, owned = _open_step()
    owned.feed([log.append(close(5))])
    assert owned.wants_commit_now


def test_samples_of_several_steps_at_the_end_of_a_replay_are_in_the_windows_it_comes_to():
    log, rng = MemoryLog(), random.Random(1)
    for number in range(5_000):
        log.append(sample(rng.randrange(4), 1.0, group_index=number % 8, rollout_id=number // 16))
    owned = _owned()
    owned.feed(log.records)
    again = _restored(log, owned)
    assert not again.is_restoring
    assert again.fold.digest() == owned.fold.digest()

"""What the fold does beyond the cases: notices, bounds, forgetting."""

from __future__ import annotations

from stream_metrics.core.effects import Notice, Publish, SetAside
from stream_metrics.core.fold import Fold
from stream_metrics.core.replay_note import decode_note, name_hash
from stream_metrics.core.settings import FoldSettings
from stream_metrics.testing import MemoryLog, close, sample, samples


def fold_of(log: MemoryLog, **settings) -> Fold:
    fold = Fold(FoldSettings(**settings), log.topic, log.partition)
    fold.feed(log.records)
    return fold


def notices(fold: Fold) -> list[str]:
    return [effect.kind for effect in fold.take_effects() if isinstance(effect, Notice)]


def reasons(fold: Fold) -> list[str]:
    return [effect.reason for effect in fold.take_effects() if isinstance(effect, SetAside)]


def results(fold: Fold) -> list[tuple[int, str]]:
    return [(one.result.step, one.result.reason) for one in fold.take_effects() if isinstance(one, Publish)]


def test_many_late_samples_look_like_a_step_done_again():
    log = MemoryLog()
    for _ in range(6):
        log.append(sample(3, 1.0))
    log.append(close(3))
    for _ in range(6):
        log.append(sample(3, 0.0))
    assert notices(fold_of(log)) == ["step_redone"]


def test_a_few_stragglers_do_not_look_like_a_step_done_again():
    log = MemoryLog()
    for _ in range(60):
        log.append(sample(3, 1.0))
    log.append(close(3))
    for _ in range(6):
        log.append(sample(3, 0.0))
    assert notices(fold_of(log)) == []


def test_many_events_too_late_in_a_row_look_like_a_step_done_again():
    log = MemoryLog()
    for step in range(6):
        log.append(close(step))
    for _ in range(40):
        log.append(sample(0, 1.0))
    fold = fold_of(log)
    assert notices(fold) == ["step_redone"]


def test_an_attempt_far_above_the_others_is_said():
    log = MemoryLog()
    log.append(sample(1, 1.0, attempt=1))
    log.append(sample(1, 1.0, attempt=10**6))
    said = {one.kind: one.message for one in fold_of(log).take_effects() if isinstance(one, Notice)}
    assert "go on with attempts above it or with another run_id" in said["attempt_far_above"]


def test_start_times_as_attempts_leap_without_a_word():
    log = MemoryLog()
    log.append(sample(1, 1.0))
    log.append(sample(1, 1.0, attempt=1_796_000_000_000))
    log.append(sample(1, 1.0, attempt=1_796_000_999_000))
    assert "attempt_far_above" not in notices(fold_of(log))


def test_a_producer_that_closes_twice_with_other_numbers_is_said_once():
    log = MemoryLog()
    log.append(sample(1, 1.0))
    log.append(close(1, expected_samples=5, producer="a"))
    for _ in range(3):
        log.append(close(1, expected_samples=7, producer="a"))
    assert notices(fold_of(log)) == ["marker_disagrees"]


def test_one_absurd_marker_makes_no_later_step_too_late_and_pins_nothing():
    log = MemoryLog()
    log.append(close(10**12))
    for step in range(200):
        log.append(sample(step, 1.0))
        log.append(close(step))
    fold = fold_of(log, remember_records=50)
    assert reasons(fold) == []
    assert log.next_offset - fold.replay_from(log.next_offset) < 10
    log.append(sample(10**12, 1.0))
    fold.feed(log.records[-1:])
    assert reasons(fold) == ["too_late"]


def test_one_absurd_sample_makes_no_later_step_too_late_and_its_timeout_ends_what_it_pins():
    log = MemoryLog()
    log.append(sample(10**12, 1.0))
    for step in range(200):
        log.append(sample(step, 1.0))
        log.append(close(step))
    fold = fold_of(log, remember_records=50)
    effects = fold.take_effects()
    assert [(one.result.step, one.result.reason) for one in effects] == [(step, "closed") for step in range(200)]
    log.append(close(10**12, reason="timeout", seen_offset=0))
    for step in range(200, 260):
        log.append(sample(step, 1.0))
        log.append(close(step))
    fold.feed(log.records[401:])
    assert results(fold) == [(10**12, "timeout"), *((step, "closed") for step in range(200, 260))]
    assert log.next_offset - fold.replay_from(log.next_offset) < 60


def test_an_absurd_marker_before_a_pause_makes_no_later_step_too_late():
    log = MemoryLog()
    for step in range(3):
        log.append(close(step, run_id="slow"))
    log.append(close(10**12, run_id="slow"))
    for step in range(100):
        log.append(close(step, run_id="busy"))
    log.append(sample(3, 1.0, run_id="slow"))
    log.append(close(3, run_id="slow"))
    fold = fold_of(log, remember_records=20)
    effects = fold.take_effects()
    assert not [one for one in effects if isinstance(one, SetAside)]
    assert (effects[-1].result.run_id, effects[-1].result.step) == ("slow", 3)


def test_steps_that_never_close_are_evicted_and_memory_stays_bounded():
    log = MemoryLog()
    for step in range(2000):
        log.append(samples(step, [{"reward": 1.0}] * 5))
    fold = Fold(FoldSettings(max_samples=1000), "t", 0)
    for record in log.records:
        fold.feed([record])
        assert fold.held_samples <= 1000
    evicted = results(fold)
    assert evicted == [(step, "evicted") for step in range(len(evicted))]
    assert len(evicted) == 1800


def test_windows_without_samples_are_bounded_too():
    log = MemoryLog()
    for step in range(5000):
        log.append(close(step, producers=2))
    fold = fold_of(log, max_samples=1000)
    assert len(list(fold.windows())) <= 1024


def test_ten_thousand_steps_leave_a_handful_of_windows():
    log = MemoryLog()
    for step in range(10_000):
        log.append(sample(step, 1.0))
        log.append(close(step))
    fold = fold_of(log)
    assert len(list(fold.windows())) == 2
    assert fold.held_samples == 2


def test_thousands_of_runs_keep_the_note_small():
    fold = Fold(FoldSettings(), "t", 0)
    log = MemoryLog()
    for run in range(3000):
        log.append(close(0, run_id=f"run-{run}", attempt=1_796_000_000_000 + run))
    fold.feed(log.records)
    note = fold.note(log.next_offset)
    assert len(note.floors) <= 128
    newest = [name_hash(f"run-{run}", "rollout") for run in range(3000 - len(note.floors), 3000)]
    assert [floor.name for floor in note.floors] == newest
    assert len(note.encode()) < 3900
    assert decode_note(note.encode()) == note


def test_an_old_step_that_never_closes_holds_the_order_until_it_times_out():
    log = MemoryLog()
    log.append(sample(0, 1.0))
    for step in range(1, 6):
        log.append(close(step))
    fold = fold_of(log)
    assert len(list(fold.windows())) == 6
    log.append(close(0, reason="timeout", seen_offset=0))
    fold.feed(log.records[-1:])
    assert [window.step for window in fold.windows()] == [4, 5]


def test_times_that_go_backwards_or_are_none_change_no_number():
    def folded(times: list[int]) -> list[tuple[object, ...]]:
        log, at = MemoryLog(), iter(times)
        for step in range(3):
            for reward in (1.0, 0.0, 0.5):
                log.append(sample(step, reward), unix_ms=next(at))
            log.append(close(step), unix_ms=next(at))
        log.append(sample(2, 0.25), unix_ms=next(at))
        return [
            (one.step, one.complete, one.reason, one.correction, one.log, one.metrics) for one in log.fold().results
        ]

    forwards = [1_700_000_000_000 + 1000 * number for number in range(13)]
    for times in (forwards[::-1], [-1] * 13, [0] * 13, [2**62] * 13, [-1, 10**15, 0] * 4 + [-(2**40)]):
        assert folded(times) == folded(forwards)
    assert len(folded(forwards)) == 4


def test_a_null_among_the_dropped_counts_costs_no_marker():
    log = MemoryLog()
    log.append(close(1, dropped={"aborted": None, "filtered": 2}))
    [published] = fold_of(log).take_effects()
    assert published.result.metrics["rollout/dropped_total"] == 2

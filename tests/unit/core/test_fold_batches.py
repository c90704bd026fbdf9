"""Records fold the same however many come together: what is taken in rows, and what breaks a row."""

from __future__ import annotations

import random

import msgspec
import pytest

from stream_metrics.core.fold import Fold
from stream_metrics.core.lanes import Lanes
from stream_metrics.core.replay_note import decode_note
from stream_metrics.core.settings import FoldSettings
from stream_metrics.testing import MemoryLog, close, sample, samples

MSGPACK_HEADERS = [("content-type", b"application/msgpack")]


def outcome(log: MemoryLog, at_once: int, *, is_compiled: bool = True, **settings) -> tuple[list, str, dict[str, int]]:
    """Returns what is asked for, the note, and the counts."""
    fold = Fold(FoldSettings(**settings), log.topic, log.partition, is_compiled=is_compiled)
    effects = []
    for start in range(0, len(log.records), at_once):
        fold.feed(log.records[start : start + at_once])
        effects += fold.take_effects()
    effects += fold.take_corrections()
    return effects, fold.note(log.next_offset).encode(), {name: count for name, count in fold.counts.items() if count}


def assert_the_same_in_any_batches(log: MemoryLog, **settings) -> None:
    one_by_one = outcome(log, 1, is_compiled=False, **settings)
    assert one_by_one[0]
    for at_once in (2, 7, 1_000):
        for is_compiled in (True, False):
            assert outcome(log, at_once, is_compiled=is_compiled, **settings) == one_by_one


def test_null_and_absent_name_the_same_window_whose_samples_stay_in_order():
    log = MemoryLog()
    named = ({}, {"attempt": None}, {"run_id": None}, {"scope": None, "attempt": 0}, {"run_id": "default"})
    for number in range(38):
        log.append(sample(1, float(number), rollout_id=0, **named[number * 7 % 5]))
    log.append(close(1))
    assert_the_same_in_any_batches(log, rollout_reward="last")
    assert outcome(log, 1_000, rollout_reward="last")[0][0].result.metrics["rollout/episode_raw_reward"] == 37.0


def test_windows_mixed_sample_by_sample_are_kept_apart():
    log, rng = MemoryLog(), random.Random(3)
    for number in range(600):
        run = f"r{rng.randrange(3)}"
        step = rng.randrange(6)
        if rng.random() < 0.2:
            log.append(samples(step, [{"reward": 0.1 * one, "rollout_id": one} for one in range(3)], run_id=run))
        else:
            log.append(sample(step, rng.random(), run_id=run, rollout_id=rng.randrange(9), sample_id=number // 2))
    for run in ("r0", "r1", "r2"):
        for step in range(6):
            log.append(close(step, run_id=run))
    assert_the_same_in_any_batches(log)


def test_what_is_no_event_breaks_no_row_and_keeps_its_place():
    log = MemoryLog()
    for number in range(60):
        log.append(sample(1, 0.5, rollout_id=number))
        if number % 20 == 7:
            log.append(b"poison")
        if number % 20 == 11:
            log.append(None)
        if number % 20 == 13:
            log.append(b'{"type":"sample","step":1,"reward":NaN}')
        if number % 20 == 17:
            log.append(sample(0, 1.0))
            log.append(close(0))
    log.append(close(1))
    assert_the_same_in_any_batches(log)


@pytest.mark.parametrize("max_samples", [1, 10, 50])
def test_a_batch_that_is_too_much_evicts_as_its_records_would(max_samples):
    log, rng = MemoryLog(), random.Random(4)
    for _ in range(200):
        log.append(sample(rng.randrange(5), rng.random(), rollout_id=rng.randrange(9)))
        log.append(samples(rng.randrange(5), [{"reward": 1.0}] * 3))
    assert_the_same_in_any_batches(log, max_samples=max_samples)


def test_messagepack_and_json_may_share_a_batch():
    log = MemoryLog()
    for number in range(30):
        event = sample(1, number / 7, rollout_id=number)
        if number % 3:
            log.append(msgspec.msgpack.encode(event), headers=MSGPACK_HEADERS)
        else:
            log.append(event, headers=MSGPACK_HEADERS if number % 2 else None)
    log.append(msgspec.msgpack.encode(sample(1, 0.5)))  # only its first byte says that it is MessagePack
    log.append(msgspec.msgpack.encode(sample(1, 0.5))[:-1])
    log.append(msgspec.msgpack.encode(close(1)), headers=[("Content-Type", b"application/json")])
    assert_the_same_in_any_batches(log)
    effects, _, counts = outcome(log, 1_000)
    assert counts["samples"] == 31 and counts["dead_letters_undecodable"] == 1 and len(effects) == 2


def mixed_log(seed: int, events: int = 1_000, ids: str = "none") -> MemoryLog:
    """Returns a log of steps of two runs that come and go: plain samples, and what may come between.

    Their `sample_id` is there with "new" in `ids`; with "again" too, and some are duplicates. Of an odd seed, many have
    more than that, in numbers.
    """
    log, rng = MemoryLog(), random.Random(seed)
    rewards = [0.5, 1, True, None, -0.0, 1e308, 10**400, "NaN"]
    first, attempt = 0, 0
    for number in range(events):
        run, step = f"r{rng.randrange(2)}", first + rng.randrange(4)
        chance = rng.random()
        if chance < 0.992:
            fields = {"run_id": run, "group_index": step % 4, "rollout_id": rng.randrange(40), "attempt": attempt}
            if chance < 0.3:
                fields["status"] = rng.choice(["completed", "truncated", "aborted", "failed", "other"])
            if chance < 0.6:
                fields["response_length"] = rng.choice([5, 2**53, -(2**63), 2**70, None])
            if chance < 0.0005:
                fields["rollout_id"] = "text"
            if ids != "none" and chance < 0.9:
                again = ids == "again" and rng.random() < 0.01
                fields["sample_id"] = (
                    max(0, number - rng.randrange(1, 30)) if again else rng.choice([number, f"{number}"])
                )
            if seed % 2 and chance > 0.985:
                fields["data_source"] = "gsm8k"
            if seed % 2 and chance > 0.4:
                fields["position"] = rng.choice([number, 900 - number, None, 2**63 - 1, -(2**63), 1 - 2**63, -(2**64)])
                fields["weight_versions"] = rng.choice([[step], [str(step), step + 1], ["a"], [-1], [], None])
                fields["metadata"] = rng.choice([{"raw_reward": 0.5}, {"raw_reward": None, "other": 1}, None])
            log.append(sample(step, rng.choice(rewards[:6]), **fields), unix_ms=10**12 + number)
        elif chance < 0.996:
            log.append(close(first, run_id=run, attempt=attempt), unix_ms=10**12 + number)
            first += 1
        elif chance < 0.997:
            log.append(sample(step, 1.0, run_id=run, sample_id=number % 7, attempt=attempt))
            log.append(sample(max(0, first - 1), 1.0, run_id=run, attempt=attempt))  # late
        elif chance < 0.998:
            log.append(b'{"type":"sample","step":%d,"run_id":"r1","reward":1e400}' % step, skip_offsets=2)
        elif chance < 0.999:
            attempt += 1
        else:
            log.append(samples(step, [{"reward": 0.25, "rollout_id": 3}] * 4, run_id=run, attempt=attempt))
    for step in range(first, first + 4):
        for run in ("r0", "r1"):
            log.append(close(step, run_id=run, attempt=attempt))
    return log


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("ids", ["none", "new", "again"])
@pytest.mark.parametrize(
    "settings", [{"rollout_reward": "last"}, {"remember_records": 3_200, "remember_steps": 1}, {"max_samples": 400}]
)
def test_plain_samples_of_many_windows_fold_as_each_alone_would(monkeypatch, seed, ids, settings):
    monkeypatch.setattr("stream_metrics.core.fold._MAX_IN_LANES", 250)
    monkeypatch.setattr("stream_metrics.core.fold._PIECE_BYTES", 40_000)
    drained: list[int] = []
    drain = Lanes.drain

    def counted(lanes: Lanes):
        drained.append(len(lanes))
        return drain(lanes)

    monkeypatch.setattr(Lanes, "drain", counted)
    assert_the_same_in_any_batches(mixed_log(seed, ids=ids), **settings)
    assert sum(drained) > 0 or "max_samples" in settings


@pytest.mark.parametrize("ids", ["none", "again"])
@pytest.mark.parametrize("cut", [200, 450, 700, 950])
def test_a_replay_takes_samples_of_many_windows_as_the_fold_before_it_did(cut, ids):
    log, settings = mixed_log(3, ids=ids), FoldSettings()
    before = Fold(settings, log.topic, log.partition)
    before.feed(log.records[:cut])
    before.take_effects()
    before.take_corrections()
    note = before.note(log.records[cut].offset())
    after = Fold.from_note(settings, log.topic, log.partition, decode_note(note.encode()))
    after.feed(log.between(note.replay_from, log.records[cut].offset()))
    after.end_replay()
    assert after.digest() == note.windows
    assert not after.counts
    told = []
    for fold in (before, after):
        fold.feed(log.records[cut:])
        told.append((fold.take_effects(), fold.take_corrections(), fold.held_samples))
    assert told[0] == told[1]


def test_a_run_whose_samples_wait_for_others_has_been_seen():
    log, rng = MemoryLog(), random.Random(6)
    for event in (sample(0, 1.0), close(0), *(sample(step, 0.0, rollout_id=0) for step in range(1, 5))):
        log.append(event)
    for _ in range(2_500):
        log.append(sample(rng.randrange(1, 5), 1.0, group_index=0, rollout_id=rng.randrange(9)))
    log.append(sample(0, 0.0))
    assert_the_same_in_any_batches(log, remember_records=1_600)


def test_what_is_looked_at_between_batches_is_as_if_each_record_came_alone():
    log = mixed_log(3)
    alone, together = (Fold(FoldSettings(), log.topic, log.partition) for _ in range(2))
    for batch, start in enumerate(range(0, len(log.records), 90)):
        records = log.records[start : start + 90]
        for record in records:
            alone.feed([record])
        together.feed(records)
        assert together.held_samples == alone.held_samples
        if batch % 3 == 2:  # not each time, so that samples are kept from one batch to the next
            for one, other in zip(alone.open_windows(), together.open_windows(), strict=True):
                assert (one.step, len(one)) == (other.step, len(other))
                assert (one.last_offset, one.last_unix_ms) == (other.last_offset, other.last_unix_ms)
        if batch % 4 == 3:
            next_offset = records[-1].offset() + 1
            assert together.note(next_offset) == alone.note(next_offset)


def test_samples_that_wait_for_others_are_bounded(monkeypatch):
    monkeypatch.setattr("stream_metrics.core.fold._MAX_WAITING", 100)
    log, rng = MemoryLog(), random.Random(5)
    for number in range(2_000):
        log.append(sample(number % 40, rng.random(), rollout_id=rng.randrange(9)))
    fold = Fold(FoldSettings(), log.topic, log.partition)
    for start in range(0, 2_000, 50):
        fold.feed(log.records[start : start + 50])
        assert sum(len(window._columns._waiting) for window in fold.windows()) <= 100 + 50
    assert sum(len(window.columns.rollout) for window in fold.windows()) == fold.held_samples == 2_000

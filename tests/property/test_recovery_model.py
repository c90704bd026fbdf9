"""A random model of fold, commit, crash and replay: what is published must not depend on where it was cut.

Each schedule makes a random log (attempts, late samples, duplicates, batches, absurd steps, timeout markers, poison,
gaps in the offsets) and folds it twice: once in one go, and once in random batches with random commits and crashes,
each crash rebuilding the fold from the note of the last commit, now with the compiled part, now without.
RECOVERY_SCHEDULES sets another number of schedules.
"""

from __future__ import annotations

import os
import random
from collections import Counter

import msgspec
import pytest

from stream_metrics.core.effects import Publish, SetAside
from stream_metrics.core.fold import Fold
from stream_metrics.core.lanes import Lanes
from stream_metrics.core.replay_note import decode_note
from stream_metrics.core.settings import FoldSettings
from support.random_logs import random_log

SCHEDULES = int(os.environ.get("RECOVERY_SCHEDULES", "20000"))
CHUNKS = 10


def random_settings(rng: random.Random) -> FoldSettings:
    return FoldSettings(
        late=rng.choice(["correct", "correct", "correct", "dead_letter"]),
        remember_steps=rng.choice([1, 1, 2, 3]),
        remember_records=rng.choice([3, 8, 20, 40, 1000]),
        max_samples=rng.choice([3, 10, 30, 1000, 1000]),
        max_runs=rng.choice([1, 2, 3, 128]),
    )


class Published:
    """What a read_committed reader of the output topics would see."""

    def __init__(self) -> None:
        self.on_time: list[bytes] = []
        self.corrections: dict[tuple[str, str, int, int], bytes] = {}
        self.dead_letters: list[tuple[int, str]] = []

    def take(self, effects) -> None:
        for effect in effects:
            if isinstance(effect, Publish):
                result = effect.result
                if result.correction:
                    key = (result.run_id, result.scope, result.attempt, result.step)
                    self.corrections[key] = msgspec.json.encode(result)
                else:
                    self.on_time.append(msgspec.json.encode(result))
            elif isinstance(effect, SetAside):
                self.dead_letters.append((effect.record.offset(), effect.reason))


def feed_in_batches(fold: Fold, records, rng: random.Random) -> None:
    while records:
        cut = rng.randrange(1, 12)
        fold.feed(records[:cut])
        records = records[cut:]
        if rng.random() < 0.3:
            fold.work_ahead()


def contents(fold: Fold):
    """Everything that a later result could depend on."""
    made = []
    for window in fold.windows():
        columns = window.columns
        made.append(
            (
                *(getattr(window, name) for name in window.__slots__ if name not in ("_columns", "is_dirty")),
                # NaN is not equal to itself: compare bytes
                *((c.tobytes() if c is not None else None) for c in (columns.rollout, columns.reward)),
                *((c.tobytes() if c is not None else None) for c in (columns.raw_reward, columns.position)),
                *(bytes(c) if c is not None else None for c in (columns.length, columns.status)),
                columns.first_has_raw_reward,
            )
        )
    return made


def run_schedule(seed: int) -> None:
    rng = random.Random(seed)
    settings, log = random_settings(rng), random_log(rng)
    expected = Published()
    whole = Fold(settings, log.topic, log.partition, is_compiled=False)
    for record in log.records:
        whole.feed([record])
        assert whole.held_samples <= settings.max_samples
    expected.take(whole.take_effects() + whole.take_corrections())

    published = Published()
    fold = Fold(settings, log.topic, log.partition, is_compiled=rng.random() < 0.5)
    next_offset = committed = 0
    metadata = fold.note(0).encode()
    while next_offset < log.next_offset:
        end = min(log.next_offset, next_offset + rng.randrange(1, 25))
        feed_in_batches(fold, log.between(next_offset, end), rng)
        next_offset = end
        if rng.random() < 0.6 or end == log.next_offset:
            published.take(fold.take_effects() + fold.take_corrections())
            note = fold.note(next_offset)
            metadata, committed = note.encode(), next_offset
            assert decode_note(metadata) == note
        if rng.random() < 0.5:
            lived = contents(fold) if committed == next_offset else None
            note = decode_note(metadata)
            fold = Fold.from_note(settings, log.topic, log.partition, note, is_compiled=rng.random() < 0.5)
            feed_in_batches(fold, log.between(note.replay_from, committed), rng)
            fold.end_replay()
            assert fold.digest() == note.windows  # what a restart goes by, asked before all else
            next_offset = committed
            assert not fold.take_effects()
            assert fold.note(committed) == note
            if lived is not None:
                assert contents(fold) == lived
    assert published.on_time == expected.on_time
    assert published.dead_letters == expected.dead_letters
    # A window forgotten with a correction pending and one corrected at a commit end with the same words.
    assert published.corrections == expected.corrections


def contents_for_metrics(window, settings, ahead):
    """Stands for the catalogue, which costs most of the time here: anything that a metric could see, in no time."""
    columns = window.columns
    return {
        f"{window.scope}/num_training_samples": len(window),
        f"{window.scope}/contents": hash((columns.rollout.tobytes(), columns.reward.tobytes(), window.duplicates)),
        f"{window.scope}/dropped": sum(window.dropped.values()),
    }


def test_a_crash_changes_nothing_with_the_whole_catalogue(monkeypatch):
    monkeypatch.setattr("stream_metrics.core.fold._WORTH_WORKING_AHEAD", 1)
    for seed in range(SCHEDULES // 100):
        run_schedule(seed)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_a_crash_at_any_commit_changes_nothing_that_is_published(chunk, monkeypatch):
    monkeypatch.setattr("stream_metrics.core.fold.step_metrics", contents_for_metrics)
    for seed in range(chunk, SCHEDULES, CHUNKS):
        try:
            run_schedule(seed)
        except BaseException as error:
            error.add_note(f"schedule with seed {seed}")
            raise


def plain_ids(rng: random.Random) -> dict[str, int]:
    ids = {"rollout_id": rng.randrange(3), "group_index": rng.choice([0, 0, 1])}
    if rng.random() < 0.5:
        ids["sample_id"] = rng.randrange(9)
    return ids


@pytest.mark.parametrize("most_in_lanes", [3, 100])
def test_nor_does_it_where_plain_samples_of_several_windows_wait_to_be_sorted(most_in_lanes, monkeypatch):
    monkeypatch.setattr("support.random_logs._ids", plain_ids)
    monkeypatch.setattr("stream_metrics.core.fold.step_metrics", contents_for_metrics)
    for name, few in {"_SHORT_ROW": 2, "_SHORT_STRETCH": 1, "_LOOKED_AT": 2, "_MAX_IN_LANES": most_in_lanes}.items():
        monkeypatch.setattr(f"stream_metrics.core.fold.{name}", few)
    drained = Counter()
    drain = Lanes.drain

    def counted(lanes: Lanes):
        drained["samples"] += len(lanes)
        return drain(lanes)

    monkeypatch.setattr(Lanes, "drain", counted)
    for seed in range(SCHEDULES // 20):
        run_schedule(seed)
    assert drained["samples"] > SCHEDULES // 20

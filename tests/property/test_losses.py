"""A random model of retention that is faster than the sidecar: no step that lost samples comes out complete.

Each schedule lets trainers send their steps one after the other, some saying how many samples they sent and some not,
while a partition is read, committed, given up by crashes and cut at its beginning, read or unread.
LOSS_SCHEDULES sets another number of schedules.
"""

from __future__ import annotations

import os
import random
from collections import Counter

import pytest

from stream_metrics.core.effects import Publish
from stream_metrics.core.replay_note import decode_note
from stream_metrics.core.settings import FoldSettings
from stream_metrics.events import StepMetrics
from stream_metrics.sidecar.owned import Owned
from stream_metrics.sidecar.timers import Timers
from stream_metrics.testing import MemoryLog, close, sample

SCHEDULES = int(os.environ.get("LOSS_SCHEDULES", "2000"))
CHUNKS = 4
LAST_STEPS = 4
"""Steps at the end during which nothing is lost."""


class Trainer:
    """Sends one step after the other."""

    def __init__(self, run_id: str, rng: random.Random) -> None:
        self.run_id = run_id
        self.sent: Counter[int] = Counter()
        self.step = 1
        self._rng = rng
        self._tells = rng.random() < 0.3
        self._left = rng.randrange(1, 6)

    def send(self, log: MemoryLog) -> None:
        if self._left:
            self._left -= 1
            self.sent[self.step] += 1
            log.append(sample(self.step, 1.0, run_id=self.run_id))
        else:
            told = {"expected_samples": self.sent[self.step]} if self._tells else {}
            log.append(close(self.step, run_id=self.run_id, **told))
            self.step += 1
            self._left = self._rng.randrange(1, 6)


class Model:
    """A partition, its reader and what it has published."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.settings = FoldSettings(
            remember_steps=rng.choice([1, 2, 3]),
            remember_records=rng.choice([200, 1000]),
            late=rng.choice(["correct", "dead_letter"]),
        )
        self.log = MemoryLog()
        self.trainers = [Trainer(f"run {number}", rng) for number in range(rng.randrange(1, 4))]
        self.low = 0
        self.has_lost = False
        self.published: list[StepMetrics] = []
        self.committed = -1
        self.metadata = ""
        self.owned = self.take_over()

    def take_over(self) -> Owned:
        note = decode_note(self.metadata) if self.committed >= 0 else None
        start = 0 if note is None else note.replay_from
        return Owned(
            self.settings,
            self.log.topic,
            self.log.partition,
            start=max(start, self.low),
            committed=self.committed,
            note=note,
            timers=Timers(3600, 60),
            is_cut=start < self.low,
        )

    def send(self, events: int) -> None:
        for _ in range(events):
            self.rng.choice(self.trainers).send(self.log)

    def read(self, records: int) -> None:
        owned = self.owned
        if owned.next_offset < self.low:
            if owned.is_restoring:
                self.owned = owned = self.take_over()
            else:
                owned.lose(self.low)
        end = min(owned.next_offset + records, self.log.next_offset)
        owned.feed(self.log.between(owned.next_offset, end))
        if end == self.log.next_offset:
            owned.reach_end(end)

    def commit(self) -> None:
        owned = self.owned
        if owned.is_restoring:
            return
        owned.gather(owned.fold.take_corrections())
        self.published += [effect.result for effect in owned.pending if isinstance(effect, Publish)]
        owned.pending.clear()
        for window in owned.lost_windows:
            self.log.append(close(window.step, run_id=window.run_id, attempt=window.attempt, reason="data_lost"))
        owned.lost_windows = []
        offset = owned.offset_to_commit()
        self.committed, self.metadata = offset.offset, offset.metadata
        owned.committed = self.committed

    def cut(self) -> None:
        self.low = self.rng.randrange(self.low, self.log.next_offset + 1)
        self.has_lost = self.has_lost or self.low > 0

    def crash(self) -> None:
        self.owned = self.take_over()

    def act(self) -> None:
        draw = self.rng.random()
        if draw < 0.35:
            self.send(self.rng.randrange(1, 15))
        elif draw < 0.75:
            self.read(self.rng.randrange(1, 20))
        elif draw < 0.9:
            self.commit()
        elif draw < 0.97:
            self.crash()
        else:
            self.cut()

    def end(self) -> list[int]:
        """Sends the last steps and reads all there is; returns how many steps each trainer has closed."""
        for trainer in self.trainers:
            last = trainer.step + LAST_STEPS
            while trainer.step < last:
                trainer.send(self.log)
        while self.owned.next_offset < self.log.next_offset or self.owned.lost_windows:
            self.read(5)
            self.commit()
        self.commit()
        return [trainer.step - 1 for trainer in self.trainers]


def run_schedule(seed: int) -> bool:
    """Runs one schedule and returns whether a step was published for what it had."""
    model = Model(random.Random(seed))
    for _ in range(40):
        model.act()
    closed = model.end()
    last = {(one.run_id, one.step): one for one in model.published}
    for trainer, newest in zip(model.trainers, closed, strict=True):
        for step in range(1, newest + 1):
            result = last.get((trainer.run_id, step))
            if result is not None and result.complete:
                assert result.metrics["rollout/num_training_samples"] == trainer.sent[step], result
        assert last[trainer.run_id, newest].complete
        if not model.has_lost:
            assert all(last[trainer.run_id, step].complete for step in range(1, newest + 1))
    return any(one.reason == "data_lost" for one in model.published)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_no_step_that_lost_samples_comes_out_complete(chunk, monkeypatch):
    monkeypatch.setattr(
        "stream_metrics.core.fold.step_metrics",
        lambda window, settings, ahead: {"rollout/num_training_samples": len(window)},
    )
    num_hit = 0
    for seed in range(chunk, SCHEDULES, CHUNKS):
        try:
            num_hit += run_schedule(seed)
        except BaseException as error:
            error.add_note(f"schedule with seed {seed}")
            raise
    assert num_hit > SCHEDULES / CHUNKS / 10

"""What an event costs with few and with many open windows, and with few and with many open rollouts. Prints ratios.

    python benchmarks/growth.py [--rounds 5]

Decode and fold, in batches as the sidecar's, without a broker; the fold is filled first, then measured on more events
of the same kind. Windows mixed sample by sample are the worst there is; 64 samples of one and then of another are what
producers send who send what they have at once. Likewise samples of any of a million rollouts are the worst there is,
a cache miss for all that is looked up, and new rollouts with their siblings near by are what a step really has.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

from stream_metrics.core.fold import Fold
from stream_metrics.core.record import LogRecord
from stream_metrics.core.settings import FoldSettings
from stream_metrics.sidecar.loop import BATCH

MEASURED = 100_000
"""Events a round: enough for all to happen that happens now and then."""

LARGEST = 4_096
"""Samples of the largest window at the start."""

SAMPLES_PER_ROLLOUT = 4
GROUP = 8

Numbers = Iterator[tuple[int, int]]


def sample(step: int, number: int, rollout: int, *, has_id: bool) -> bytes:
    sample_id = f',"sample_id":{number}' if has_id else ""
    return (
        f'{{"type":"sample","run_id":"r","step":{step},"group_index":{rollout // GROUP},"index":{number},'
        f'"rollout_id":{rollout},"reward":{number % 201 / 100 - 1},"response_length":{64 + number % 8000},'
        f'"status":"{"truncated" if number % 11 == 0 else "completed"}"{sample_id}}}'
    ).encode()


def filled_windows(count: int) -> Numbers:
    """Yields step and rollout: windows of different sizes, so that what a window puts off comes due all along."""
    rng = random.Random(2)
    yield from ((step, rng.randrange(200)) for step in range(count) for _ in range(step * LARGEST // count))


def mixed_windows(count: int) -> Numbers:
    """Yields step and rollout: each sample of any window, two hundred rollouts in each."""
    yield from filled_windows(count)
    rng = random.Random(1)
    while True:
        yield rng.randrange(count), rng.randrange(200)


def windows_in_turn(count: int) -> Numbers:
    """Yields step and rollout: 64 samples of a window, then of another."""
    yield from filled_windows(count)
    rng = random.Random(1)
    while True:
        step = rng.randrange(count)
        for _ in range(64):
            yield step, rng.randrange(200)


def rollouts(count: int) -> Numbers:
    """Yields step and rollout of one window: all rollouts once, neighbours mixed, then samples of any of them."""
    rng = random.Random(1)
    places = sorted(range(count), key=lambda place: place + rng.random() * 256)
    yield from ((0, place) for place in places)
    while True:
        yield 0, rng.randrange(count)


def new_rollouts(count: int) -> Numbers:
    """Yields step and rollout of one window: `count` rollouts, then more of them, neighbours mixed."""
    rng = random.Random(1)
    number = 0
    while True:
        yield 0, max(0, number // SAMPLES_PER_ROLLOUT - rng.randrange(64))
        number += 1 if number >= count * SAMPLES_PER_ROLLOUT else SAMPLES_PER_ROLLOUT


class Case:
    """A fold that is filled, and what it is measured on."""

    def __init__(self, numbers: Numbers, filling: int, *, has_ids: bool) -> None:
        self._has_ids = has_ids
        self._fold = Fold(FoldSettings(), "samples", 0)
        self._numbers = numbers
        self._next = 0
        while self._next < filling:
            self._fold.feed(self._batch())

    def measure(self) -> float:
        """Returns nanoseconds of the processor an event: others on the machine shall not count."""
        seconds = 0.0
        count = 0
        while count < MEASURED:
            records = self._batch()
            count += len(records)
            begun = time.thread_time()
            self._fold.feed(records)
            del records  # freed here, whether the fold kept it for a while or not
            seconds += time.thread_time() - begun
        return seconds / count * 1e9

    def _batch(self) -> list[LogRecord]:
        made = []
        for _ in range(BATCH):
            step, rollout = next(self._numbers)
            value = sample(step, self._next, rollout, has_id=self._has_ids)
            made.append(LogRecord(value=value, offset=self._next))
            self._next += 1
        return made


def cases(kind: Callable[[int], Numbers], few: int, many: int, each: int, *, has_ids: bool) -> tuple[Case, Case]:
    return Case(kind(few), few * each, has_ids=has_ids), Case(kind(many), many * each, has_ids=has_ids)


def measure(rounds: int) -> list[dict[str, Any]]:
    """Returns a row for each kind of growth."""
    rows = []
    gc.disable()
    for name, kind, few, many, each, has_ids in (
        ("open windows, mixed sample by sample", mixed_windows, 1, 1_000, LARGEST // 2, False),
        ("open windows, 64 samples in turn", windows_in_turn, 1, 1_000, LARGEST // 2, False),
        ("open windows, mixed, each sample with a sample_id", mixed_windows, 1, 1_000, LARGEST // 2, True),
        ("open rollouts, samples of any", rollouts, 1_000, 1_000_000, 1, False),
        ("open rollouts, new ones", new_rollouts, 1_000, 1_000_000, 1, False),
    ):
        of_few, of_many = cases(kind, few, many, each, has_ids=has_ids)
        pairs = [(of_few.measure(), of_many.measure()) for _ in range(rounds)]
        rows.append(
            {
                "name": name,
                "few": few,
                "many": many,
                "few_ns": round(min(pair[0] for pair in pairs)),
                "many_ns": round(min(pair[1] for pair in pairs)),
                "ratio": round(statistics.median(pair[1] / pair[0] for pair in pairs), 2),
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    measure(parser.parse_args().rounds)


if __name__ == "__main__":
    main()

"""What becomes of what a transaction didn't take, by a clock that a test turns. Nothing is connected to."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from stream_metrics.config import Settings
from stream_metrics.core.settings import FoldSettings
from stream_metrics.sidecar.commits import RETRY_SECONDS, Commits
from stream_metrics.sidecar.health import Health
from stream_metrics.sidecar.owned import Owned
from stream_metrics.sidecar.self_metrics import SelfMetrics
from stream_metrics.sidecar.timers import Timers
from stream_metrics.sidecar.transactions import AbortedError, OutRecord, TooLargeError
from stream_metrics.testing import MemoryLog, close, sample

SETTINGS = Settings()


class Bench:
    """Commits of one partition, whose transactions and consumer are noted.

    Attributes:
        fails_with: What the next transactions raise.
        written: Records and offsets of each transaction that was tried.
        told: What the consumer was told.
    """

    def __init__(self) -> None:
        self.now = 100.0
        self.fails_with: list[Exception] = []
        self.written: list[tuple[list[OutRecord], list[int]]] = []
        self.told: list[str] = []
        self.log = MemoryLog()
        self.owned = Owned(FoldSettings(), "t", 0, start=0, committed=0, note=None, timers=Timers(3600, 60))
        bench: Any = self
        self.commits = Commits(
            SETTINGS,
            {0: self.owned},
            bench,
            bench,
            40_000,
            Health(0.5, time.monotonic),
            SelfMetrics(),
            lambda: self.now,
            lambda: 0,
        )

    def feed(self, *events: dict[str, Any] | bytes) -> None:
        self.owned.feed([self.log.append(event) for event in events])

    def turn(self, seconds: float = 0.0) -> None:
        self.now += seconds
        self.commits.commit_if_due(is_behind=False)

    def run(self, records: Iterable[OutRecord], offsets: list[TopicPartition], _: object) -> None:
        self.written.append((list(records), [one.offset for one in offsets]))
        if self.fails_with:
            raise self.fails_with.pop(0)

    def pause(self, partitions: list[TopicPartition]) -> None:
        self.told.append("pause")

    def resume(self, partitions: list[TopicPartition]) -> None:
        self.told.append("resume")


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_what_an_aborted_transaction_held_is_in_the_next_one_and_nothing_is_read_in_between(bench: Bench) -> None:
    bench.fails_with = [AbortedError("no")]
    bench.feed(sample(1, 1.0), close(1))
    bench.turn()
    assert bench.commits.are_failing
    assert bench.told == ["pause"]
    bench.turn(RETRY_SECONDS)
    first, second = bench.written
    assert first == second
    assert second[1] == [2]
    assert not bench.commits.are_failing
    assert bench.told == ["pause", "resume"]
    assert (bench.owned.pending, bench.owned.committed) == ([], 2)


def test_a_transaction_that_keeps_failing_is_tried_ever_less_often(bench: Bench) -> None:
    bench.fails_with = [AbortedError("no")] * 1_000
    bench.feed(sample(1, 1.0), close(1))
    tries = []
    for _ in range(400):
        bench.turn(0.05)
        tries.append(len(bench.written))
    assert tries[0] == 1
    assert tries[20] > 3  # within a second
    assert len(bench.written) < 25  # in twenty
    assert bench.told == ["pause"]


def test_late_samples_change_no_result_that_waits_to_be_written_again(bench: Bench) -> None:
    bench.fails_with = [AbortedError("no")]
    bench.feed(sample(1, 1.0), close(1))
    bench.turn()
    bench.feed(sample(1, 0.0))  # it had been fetched before the partition was paused
    bench.turn(RETRY_SECONDS)
    on_time, correction = (json.loads(record.value or b"") for record in bench.written[1][0])
    assert (on_time["correction"], on_time["metrics"]["rollout/num_training_samples"]) == (False, 1)
    assert (correction["correction"], correction["metrics"]["rollout/num_training_samples"]) == (True, 2)
    assert bench.written[1][1] == [3]


def test_dead_letters_that_are_too_large_are_cut_shorter_until_they_fit(bench: Bench) -> None:
    bench.fails_with = [TooLargeError(SETTINGS.dead_letter_topic)] * 2
    bench.feed(b"x" * 30_000)
    bench.turn(SETTINGS.commit_interval_seconds)
    bench.turn(RETRY_SECONDS)
    bench.turn(RETRY_SECONDS)
    sizes = [len(records[0].value or b"") for records, _ in bench.written]
    assert sizes[0] == 30_000
    assert sizes[0] > sizes[1] > sizes[2]
    assert not bench.commits.are_failing


def test_a_result_that_is_too_large_cuts_no_dead_letter(bench: Bench) -> None:
    bench.fails_with = [TooLargeError(SETTINGS.output_topic)]
    bench.feed(b"x" * 30_000, sample(1, 1.0), close(1))
    bench.turn()
    bench.turn(RETRY_SECONDS)
    assert bench.written[0] == bench.written[1]


def test_a_partition_that_is_being_restored_has_no_part_in_a_commit(bench: Bench) -> None:
    bench.feed(sample(1, 1.0), close(1))
    bench.owned.is_restoring = True
    bench.turn(SETTINGS.commit_interval_seconds)
    bench.commits.commit([bench.owned])
    assert bench.written == []

"""When what the folds ask for is committed, and what follows where a transaction fails.

- A result is committed at once; while more records are waiting than a batch holds, results wait for each other.
- What isn't committed stays in its partition, and is in the next transaction again.
- While transactions fail nothing is consumed: what can't be committed must not pile up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from confluent_kafka import Consumer, TopicPartition

from stream_metrics.config import Settings
from stream_metrics.core.effects import Effect, Publish, SetAside
from stream_metrics.core.window import Window
from stream_metrics.events import CloseReason, encode
from stream_metrics.sidecar import logs
from stream_metrics.sidecar.dead_letters import dead_letter
from stream_metrics.sidecar.health import Health
from stream_metrics.sidecar.owned import Owned
from stream_metrics.sidecar.self_metrics import SelfMetrics
from stream_metrics.sidecar.timers import marker
from stream_metrics.sidecar.transactions import AbortedError, OutRecord, TooLargeError, Transactions

BEHIND_COMMIT_SECONDS: Final = 0.2
"""A transaction takes as long as thousands of records, so while more are waiting, results wait for each other."""

MAX_PENDING: Final = 2_000
"""Dead letters hold whole records, so they don't wait for the interval beyond this many."""

RETRY_SECONDS: Final = 2.0

_MIN_DEAD_LETTER_BYTES: Final = 8_192


class Commits:
    """The commits of one replica, from one start to the next.

    Args:
        settings: All settings.
        owned: The partitions that are ours, as they come and go.
        consumer: Who reads them.
        transactions: What writes.
        max_dead_letter_bytes: What the dead-letter topic takes as one record.
        health: Told of transactions under way.
        metrics: The sidecar's own metrics.
        monotonic: Seconds that never jump.
        unix_ms: The wall clock.
    """

    def __init__(
        self,
        settings: Settings,
        owned: Mapping[int, Owned],
        consumer: Consumer,
        transactions: Transactions,
        max_dead_letter_bytes: int,
        health: Health,
        metrics: SelfMetrics,
        monotonic: Callable[[], float],
        unix_ms: Callable[[], int],
    ) -> None:
        self._settings = settings
        self._owned = owned
        self._consumer = consumer
        self._transactions = transactions
        self._max_dead_letter_bytes = max_dead_letter_bytes
        self._health = health
        self._metrics = metrics
        self._monotonic = monotonic
        self._unix_ms = unix_ms
        self._last_commit = monotonic()
        self._failing_since: float | None = None
        self._next_try = 0.0

    @property
    def are_failing(self) -> bool:
        """Whether the last transaction was aborted: until one goes through, all partitions are paused."""
        return self._failing_since is not None

    def commit_if_due(self, *, is_behind: bool) -> None:
        """Commits where something waits that shouldn't wait any longer.

        Args:
            is_behind: Whether more records are waiting to be read.
        """
        now = self._monotonic()
        if now < self._next_try:
            return
        live = [owned for owned in self._owned.values() if not owned.is_restoring]
        age = now - self._last_commit
        is_patient = is_behind and age < BEHIND_COMMIT_SECONDS
        if (
            age >= self._settings.commit_interval_seconds
            or self.are_failing
            or (not is_patient and any(one.wants_commit_now for one in live))
            or any(one.committed < 0 or len(one.pending) > MAX_PENDING for one in live)
        ):
            self._last_commit = now
            self.commit(live)

    def commit(self, partitions: Iterable[Owned]) -> None:
        """Commits all that isn't yet of the given partitions: effects, corrections, markers and offsets.

        A partition that is being restored has no part in it.
        """
        live = [owned for owned in partitions if not owned.is_restoring]
        for owned in live:
            owned.gather(owned.fold.take_corrections())
        moved = [owned for owned in live if owned.pending or owned.has_moved or owned.lost_windows]
        if moved:
            began = self._monotonic()
            offsets = [owned.offset_to_commit() for owned in moved]
            if not self._transact(self._records(moved), offsets):
                return
            self._metrics.commits.inc()
            self._metrics.commit_seconds.observe(self._monotonic() - began)
            for owned, offset in zip(moved, offsets, strict=True):
                self._take_committed(owned, offset.offset)
        self._have_passed()

    def write_timeouts(self, owned: Owned, windows: list[Window]) -> None:
        """Writes timeout markers to the windows' own partition, in a transaction of their own."""
        if not self._transact([_marker_record(owned, window, "timeout") for window in windows], []):
            owned.timers.ask_again()
            return
        self._metrics.timeouts.inc(len(windows))
        for window in windows:
            logs.warning(
                "a step waited too long: closing it as it is",
                **logs.named(window),
                samples=len(window),
                expected_samples=window.expected_samples,
                producers_heard=len(window.heard),
                producers=window.producers,
            )

    # --- what is written -----------------------------------------------------------------------------------------

    def _records(self, partitions: Iterable[Owned]) -> Iterator[OutRecord]:
        for owned in partitions:
            for effect in owned.pending:
                yield self._record(effect)
            for window in owned.lost_windows:
                yield _marker_record(owned, window, "data_lost")

    def _record(self, effect: Effect) -> OutRecord:
        if isinstance(effect, Publish):
            result = effect.result
            return OutRecord(self._settings.output_topic, result.key(), encode(result), run_id=result.run_id)
        assert isinstance(effect, SetAside)
        letter = dead_letter(effect, self._max_dead_letter_bytes)
        return OutRecord(self._settings.dead_letter_topic, letter.key, letter.value, letter.headers)

    # --- what a transaction's end brings -------------------------------------------------------------------------

    def _transact(self, records: Iterable[OutRecord], offsets: list[TopicPartition]) -> bool:
        """Returns whether the transaction was committed; where not, it will be tried again."""
        self._health.begin_commit()
        try:
            self._transactions.run(records, offsets, self._consumer)
            return True
        except TooLargeError as error:
            self._make_smaller(str(error))
            why = f"too large: {error}"
        except AbortedError as error:
            why = str(error)
        finally:
            self._health.end_commit()
        self._metrics.aborts.inc()
        now = self._monotonic()
        if self._failing_since is None:
            self._failing_since = now
            logs.warning("a transaction was aborted, and will be tried again", why=why)
            self._consumer.pause(self._places())
        self._next_try = now + min(RETRY_SECONDS, 0.05 + (now - self._failing_since) / 4)
        return False

    def _make_smaller(self, topics: str) -> None:
        """Cuts dead letters shorter; a result can't be cut, so it is waited for until its topic takes it."""
        if self._settings.output_topic not in topics.split(", "):
            self._max_dead_letter_bytes = max(_MIN_DEAD_LETTER_BYTES, self._max_dead_letter_bytes // 2)
            logs.warning("a dead letter was too large; they are cut shorter", max_bytes=self._max_dead_letter_bytes)
        elif not self.are_failing:
            logs.error(
                "a result is larger than the output topic takes, and nothing goes on until it fits: "
                "raise the topic's max.message.bytes",
                topic=self._settings.output_topic,
            )

    def _take_committed(self, owned: Owned, next_offset: int) -> None:
        for window in owned.lost_windows:
            logs.error(
                "a step is incomplete for good: the log no longer holds all of it",
                **logs.named(window),
                partition=owned.partition,
                samples_left=len(window),
            )
        self._metrics.take(0, owned.fold.counts)  # the corrections
        self._say_results(owned.pending)
        owned.pending.clear()
        owned.lost_windows = []
        owned.committed = next_offset

    def _say_results(self, effects: Iterable[Effect]) -> None:
        now = self._unix_ms()
        for effect in effects:
            if isinstance(effect, Publish):
                result = effect.result
                metrics = result.metrics
                if not result.correction and result.closed_unix_ms is not None:
                    self._metrics.publish_seconds.observe(max(0, now - result.closed_unix_ms) / 1000)
                logs.info(
                    "step corrected" if result.correction else "step closed",
                    **logs.named(result),
                    complete=result.complete,
                    reason=result.reason,
                    samples=metrics[f"{result.scope}/num_training_samples"],
                    episode_raw_reward=metrics[f"{result.scope}/episode_raw_reward"],
                    late_samples=result.late_samples or None,
                )

    def _have_passed(self) -> None:
        if self._failing_since is not None:
            logs.info("transactions go through again", after_seconds=self._monotonic() - self._failing_since)
            self._failing_since = None
            self._next_try = 0.0
            self._consumer.resume(self._places())

    def _places(self) -> list[TopicPartition]:
        return [one.place() for one in self._owned.values()]


def _marker_record(owned: Owned, window: Window, reason: CloseReason) -> OutRecord:
    return OutRecord(owned.topic, window.run_id.encode(), encode(marker(window, reason)), partition=owned.partition)

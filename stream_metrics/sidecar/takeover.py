"""Where a partition begins when it becomes ours: its committed offset, its note, and what the log still holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

from confluent_kafka import Consumer, KafkaException, TopicPartition

from stream_metrics.config import Settings
from stream_metrics.core.replay_note import NoteError, ReplayNote, decode_note
from stream_metrics.sidecar import logs
from stream_metrics.sidecar.errors import Meaning, RestartError, StateRefusedError, StoppingError, meaning
from stream_metrics.sidecar.input_topic import InputTopic, made_anew
from stream_metrics.sidecar.owned import Owned
from stream_metrics.sidecar.self_metrics import SelfMetrics
from stream_metrics.sidecar.timers import Timers

CALL_SECONDS: Final = 1.0
BUDGET_SECONDS: Final = 120.0
_SAY_AFTER_SECONDS: Final = 3.0


class Takeover:
    """Asks the broker where partitions begin. Called in the assignment callback, so each call is short.

    Args:
        settings: All settings.
        consumer: The group's member.
        input_topic: Tells which topic of its name it is.
        metrics: The sidecar's own metrics.
        monotonic: Seconds that never jump.
        pause: Sleeps for some seconds.
        must_stop: Tells whether a stop was asked for; called while waiting.
    """

    def __init__(
        self,
        settings: Settings,
        consumer: Consumer,
        input_topic: InputTopic,
        metrics: SelfMetrics,
        monotonic: Callable[[], float],
        pause: Callable[[float], None],
        must_stop: Callable[[], bool],
    ) -> None:
        self._settings = settings
        self._fold_settings = settings.fold()
        self._consumer = consumer
        self._input_topic = input_topic
        self._metrics = metrics
        self._monotonic = monotonic
        self._pause = pause
        self._must_stop = must_stop

    def take(self, partitions: list[TopicPartition]) -> list[Owned]:
        """Returns the partitions as they begin, in their order.

        Raises:
            StateRefusedError: An offset was committed by something else, or of another topic of this name.
            RestartError: The broker doesn't answer.
            StoppingError: A stop was asked for while waiting.
        """
        topic_id = self._patiently(self._input_topic.id)
        committed = self._committed(partitions)
        has_history = any(one.offset >= 0 for one in committed) or self._group_has_history()
        return [self._own(one, topic_id, has_history) for one in sorted(committed, key=lambda one: one.partition)]

    def watermarks(self, partition: int) -> tuple[int, int]:
        """Returns the first offset that the log holds and the end of what is committed in it."""
        at = TopicPartition(self._settings.input_topic, partition)
        answer = self._patiently(lambda: self._consumer.get_watermark_offsets(at, timeout=CALL_SECONDS))
        return cast(tuple[int, int], answer)

    def _own(self, committed: TopicPartition, topic_id: str, has_history: bool) -> Owned:
        settings = self._settings
        low, high = self.watermarks(committed.partition)
        note: ReplayNote | None = None
        if committed.offset < 0:
            # A partition that joins a group at work was added while it ran: all of it is new.
            start = high if settings.start == "latest" and not has_history else low
        else:
            note = self._note(committed)
            if note is not None:
                self._check_topic(committed, note, topic_id)
            start = committed.offset if note is None else note.replay_from
        is_cut = start < low
        if is_cut:
            self._say_cut(committed, start, low)
        return Owned(
            self._fold_settings,
            committed.topic,
            committed.partition,
            start=max(start, low),
            # Without a note of ours nothing is committed yet, and the first commit comes at once.
            committed=committed.offset if note is not None else -1,
            note=note,
            topic_id=topic_id,
            timers=Timers(settings.idle_timeout_seconds, settings.close_grace_seconds),
            is_cut=is_cut,
            accept_changed=settings.accept_changed_replay,
            is_compiled=not settings.pure_python,
            now=self._monotonic(),
        )

    def _note(self, committed: TopicPartition) -> ReplayNote | None:
        """Returns the note of a committed offset, or None where the offset is adopted without one."""
        try:
            return decode_note(committed.metadata)
        except NoteError as error:
            where = f"offset {committed.offset} of {committed.topic}[{committed.partition}]"
            if not self._settings.adopt_offsets:
                raise StateRefusedError(
                    f"{where} in group {self._settings.group_id!r}: {error}. Use another --group-id, "
                    "or go on from there without the steps open at it with --adopt-offsets"
                ) from None
            logs.warning("adopted an offset that isn't ours", offset=where, why=str(error))
            return None

    def _check_topic(self, committed: TopicPartition, note: ReplayNote, topic_id: str) -> None:
        if not note.topic_id or not topic_id or note.topic_id == topic_id or committed.offset == 0:
            return  # the same, or one of them isn't known, or nothing had been read of it
        message = made_anew(committed.topic, topic_id, note.topic_id, committed.offset)
        if not self._settings.accept_changed_replay:
            raise StateRefusedError(message)
        logs.warning("went on in another topic, as told", partition=committed.partition, why=message)

    def _say_cut(self, committed: TopicPartition, start: int, low: int) -> None:
        say_lost(
            "retention removed what steps in memory were made from",
            self._metrics,
            committed,
            start,
            low,
            committed=committed.offset,
            lost_unread=max(0, low - committed.offset),
        )

    def _committed(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Returns the committed offsets, waiting for a predecessor's open transaction to be resolved."""
        answer = self._patiently(lambda: self._consumer.committed(partitions, timeout=CALL_SECONDS))
        return cast(list[TopicPartition], answer)

    def _group_has_history(self) -> bool:
        """Returns whether the group has committed an offset of any partition; asked only where it matters."""
        topic = self._settings.input_topic
        if self._settings.start != "latest":
            return True
        metadata = self._patiently(lambda: self._consumer.list_topics(topic, timeout=CALL_SECONDS))
        everything = [TopicPartition(topic, partition) for partition in metadata.topics[topic].partitions]
        return any(one.offset >= 0 for one in self._committed(everything))

    def _patiently(self, call: Callable[[], Any]) -> Any:
        """Returns the call's answer, asking again for a while."""
        began, is_said = self._monotonic(), False
        while True:
            if self._must_stop():
                raise StoppingError
            try:
                return call()
            except KafkaException as error:
                if meaning(error.args[0]) is not Meaning.WAIT:
                    raise
                waited = self._monotonic() - began
                if waited > BUDGET_SECONDS:
                    raise RestartError(f"the broker doesn't answer: {error.args[0].str()}") from None
                if waited > _SAY_AFTER_SECONDS and not is_said:
                    is_said = True
                    logs.warning("waiting for the broker to say where to start", error=error.args[0].str())
                self._pause(CALL_SECONDS / 10)


def say_lost(message: str, metrics: SelfMetrics, place: TopicPartition, begin: int, end: int, **more: int) -> None:
    """Counts and says what isn't in the log any more: the offsets from `begin` to before `end` of a partition."""
    metrics.lost_records.inc(end - begin)
    message = f"{message}: give the topic a longer retention"
    logs.error(message, topic=place.topic, partition=place.partition, lost_from=begin, lost_to=end - 1, **more)

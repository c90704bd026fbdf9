"""One partition while it is ours: its fold, how far it is, and what is not committed yet.

A partition starts `is_restoring`: the fold is fed silently up to the committed offset, and has no part in any commit.
What is asked for stays in `pending` until a transaction with it is committed.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from confluent_kafka import TopicPartition

from stream_metrics.core.effects import Effect, Notice, Publish
from stream_metrics.core.fold import Fold
from stream_metrics.core.record import Record
from stream_metrics.core.replay_note import FOLD_VERSION, ReplayNote
from stream_metrics.core.settings import FoldSettings
from stream_metrics.core.window import Window
from stream_metrics.sidecar import logs
from stream_metrics.sidecar.errors import StateRefusedError
from stream_metrics.sidecar.standstill import Standstill
from stream_metrics.sidecar.timers import Timers


class Owned:
    """A partition that this replica owns.

    Attributes:
        fold: Its state.
        next_offset: Offset to read next: all below it has been folded, or was no record.
        committed: The next_offset that is committed, -1 for none.
        is_restoring: Whether the fold still replays what was committed.
        is_caught_up: Whether the end of the log has been reached since the assignment.
        pending: What is asked for and not committed.
        notices: What is to be told to the operator.
        lost_windows: Windows that must be closed because the log no longer holds all of them.
        topic_id: Which topic of its name it is a partition of; empty where the broker doesn't say.
    """

    def __init__(
        self,
        settings: FoldSettings,
        topic: str,
        partition: int,
        *,
        start: int,
        committed: int,
        note: ReplayNote | None,
        timers: Timers,
        topic_id: str = "",
        is_cut: bool = False,
        accept_changed: bool = False,
        is_compiled: bool = True,
        now: float = 0.0,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.topic_id = topic_id
        self.timers = timers
        self.committed = committed
        self.pending: list[Effect] = []
        self.notices: list[Notice] = []
        self.lost_windows: list[Window] = []
        self.is_caught_up = False
        self.standstill = Standstill()
        self.began_at = now
        self.replayed = 0
        self._note = note
        self._start = start
        self._is_cut = is_cut
        self._accept_changed = accept_changed
        self.next_offset = start
        self.is_restoring = note is not None
        if note is None:
            self.fold = Fold(settings, topic, partition, is_compiled=is_compiled)
            if start:
                self.fold.lose(start)
        else:
            self.fold = Fold.from_note(settings, topic, partition, note, is_compiled=is_compiled)
            if start >= committed:
                self.end_restore()

    @property
    def has_moved(self) -> bool:
        """Whether there is an offset to commit."""
        return not self.is_restoring and self.next_offset > self.committed

    @property
    def wants_commit_now(self) -> bool:
        """Whether a result waits to be published, or a step to be closed."""
        return bool(self.lost_windows) or any(isinstance(effect, Publish) for effect in self.pending)

    def feed(self, records: Sequence[Record]) -> int:
        """Folds records in order and returns how many of them were new to the group.

        Raises:
            StateRefusedError: The replay has ended and gives other windows than were committed.
        """
        if self.is_restoring:
            silent = [record for record in records if record.offset() < self.committed]
            self.fold.feed(silent)
            self.replayed += len(silent)
            if len(silent) == len(records):
                if records:
                    self.next_offset = records[-1].offset() + 1
                    if self.next_offset >= self.committed:
                        self.end_restore()
                return 0
            self.end_restore()
            records = records[len(silent) :]
        if records and records[0].offset() < self.next_offset:
            # A fetch from before a rewind, or a log made anew under us: what we have folded doesn't come twice.
            records = [record for record in records if record.offset() >= self.next_offset]
        if not records:
            return 0
        self.fold.feed(records)
        self.next_offset = records[-1].offset() + 1
        self.gather(self.fold.take_effects())
        return len(records)

    def gather(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Notice):
                self.notices.append(effect)
            else:
                self.pending.append(effect)

    def reach_end(self, offset: int) -> None:
        """Notes that all below `offset` has been delivered: control records behind the last record count as read."""
        if self.is_restoring:
            if offset < self.committed:
                return  # the broker hasn't caught up with what it committed, or isn't the one it was
            self.end_restore()
        self.next_offset = max(self.next_offset, offset)
        self.is_caught_up = True

    def end_restore(self) -> None:
        """Goes from replaying to living.

        Raises:
            StateRefusedError: The windows are not those that were committed.
        """
        note, fold = self._note, self.fold
        assert note is not None
        self.is_restoring = False
        fold.end_replay()
        self.next_offset = max(self.next_offset, self.committed)
        has_changed = note.settings != fold.settings.digest() or note.fold != FOLD_VERSION
        if self._is_cut:
            # Closed windows were published from more than this. Open ones are whole where the log holds all of each and
            # no closed one looks open for having lost its marker; else all of them are closed as they are, and what
            # comes may be the rest of one that is gone altogether.
            fold.freeze(self.next_offset)
            num_open = len(list(fold.open_windows()))
            if note.open_from < self._start or num_open != note.num_open:
                self.lose(self.next_offset)
        elif fold.digest() != note.windows:
            where = f"{self.topic}[{self.partition}] from {note.replay_from} to {self.committed}"
            why = (
                "the settings that change results, or the version, are not those it was committed with"
                if has_changed
                else "the log is not the one it was"
            )
            if not self._accept_changed:
                raise StateRefusedError(
                    f"{where} replays to other windows ({fold.digest()}) than were committed ({note.windows}): {why}. "
                    "Go back to what it was, or accept what the log gives now with --accept-changed-replay"
                )
            logs.warning("went on from changed windows, as told", where=where, why=why)
            fold.freeze(self.next_offset)
            if not has_changed:
                fold.lose(self.next_offset)
        elif has_changed:
            logs.warning(
                "settings or version have changed: open steps follow them, closed ones take no more corrections",
                topic=self.topic,
                partition=self.partition,
            )
            fold.freeze(self.next_offset)

    def lose(self, end: int) -> None:
        """Goes on at offset `end`: something before it is lost, so what is open is closed as it is."""
        self.fold.lose(end)
        self.lost_windows = list(self.fold.open_windows())
        self.next_offset = end

    def place(self) -> TopicPartition:
        """Returns where to read on."""
        return TopicPartition(self.topic, self.partition, self.next_offset)

    def offset_to_commit(self) -> TopicPartition:
        """Returns the position with its replay note."""
        note = msgspec.structs.replace(self.fold.note(self.next_offset), topic_id=self.topic_id)
        return TopicPartition(self.topic, self.partition, self.next_offset, metadata=note.encode())

"""The fold: one partition's log in, effects out. The same log and settings always give the same.

Rules that recovery stands on:
- All that changes a result is in the log. No clock, no random number, no dependence on how records come in batches.
- Windows are forgotten in the order of their steps; a step at or below its floor never comes back.
- While replaying, the floors of the note stand as they are, nothing is forgotten and nothing is asked for.
- Everything in memory is bounded: samples, windows, runs, and the note.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, Final, TypeVar

import msgspec

from stream_metrics.core.catalogue import Ahead, step_metrics, work_ahead
from stream_metrics.core.effects import Effect, Notice, NoticeKind, Publish, SetAside
from stream_metrics.core.lanes import FindWindow, Lanes, WindowName
from stream_metrics.core.lifecycle import Happening, State, after
from stream_metrics.core.record import Record
from stream_metrics.core.replay_note import (
    FOLD_VERSION,
    MAX_FLOOR_BYTES,
    ReplayNote,
    name_hash,
)
from stream_metrics.core.settings import FoldSettings
from stream_metrics.core.track import MAX_BESIDE, Track
from stream_metrics.core.window import Window, clock_unix_ms
from stream_metrics.events import (
    DEFAULT_RUN_ID,
    DEFAULT_SCOPE,
    MAX_PRODUCERS,
    NOT_DECODED,
    DeadLetterReason,
    Event,
    EventError,
    LogPlace,
    ResultReason,
    Sample,
    SampleBatch,
    SampleFields,
    StepClose,
    StepMetrics,
    decode,
    decode_fast,
    decode_fast_msgpack,
)

_CHECKS_PER_MEMORY: Final = 16
"""How often, within `remember_records` offsets, the fold looks for runs to forget."""

_SAMPLES_PER_WINDOW: Final = 64
"""A window takes about the memory of this many samples, so their number is bounded by `max_samples` over it."""

_MIN_WINDOWS: Final = 1_024

_FAR_ATTEMPTS: Final = 1_000
"""Attempts that count up grow by one; a leap over more than this is said. Start times leap by nature."""

_START_TIMES: Final = 10**9

_REDONE_SAMPLES: Final = 4
_REDONE_EVENTS: Final = 16
"""So many late samples of a step, and half as many as it had; or so many events in a row too late: done again."""

_PIECE_BYTES: Final = 200_000
"""So much of the log is folded at once: with all that is made of it, it stays in a core's own cache."""

_MIN_PIECE: Final = 16

_SHORT_ROW: Final = 64
_SHORT_STRETCH: Final = 16
"""Where windows are opened after fewer samples than that, sorting them isn't worth it."""

_MAX_IN_LANES: Final = 65_536
"""Samples in lanes are brought to their windows when there are so many: the more, the less each one costs."""

_MAX_IN_LANE: Final = 2_048
"""So many for each window are enough: the next event that isn't a sample has to wait for them."""

_STOPS: Final = 2
"""So often the compiled part stops in a piece, and once more for each short row it reads; then the rest is decoded."""

_LOOKED_AT: Final = 16
"""So many of the events decoded together, from all over, tell whether they are worth sorting to their windows."""

_MAX_WAITING: Final = 50_000
"""Samples that came in rows so short wait in their windows, as they were decoded, until there are so many of them."""

_WORTH_WORKING_AHEAD: Final = 256
_MAX_AHEAD: Final = 64
"""Open windows with so many samples have their metrics worked out ahead; of more windows, the newest."""

_FAR_STEPS: Final = 1_000
"""A step that far above the one below it is taken for a slip: the floor doesn't rise to it for want of events alone."""


_Items = TypeVar("_Items", bound=Sequence[Any])


class Fold:
    """The state of one input partition.

    Args:
        settings: What it needs to know beside the log.
        topic: The input topic.
        partition: The number of the partition.
        is_compiled: Whether samples are read by the compiled part, if that is there: the same results, sooner.

    Attributes:
        settings: What it needs to know beside the log.
        counts: How often what has happened, for self-metrics; replaying counts nothing.
        is_replaying: Whether it rebuilds what was in memory, silently.
    """

    def __init__(self, settings: FoldSettings, topic: str, partition: int, *, is_compiled: bool = True) -> None:
        self.settings = settings
        self.topic = topic
        self.partition = partition
        self.counts: Counter[str] = Counter()
        self.is_replaying = False
        self._effects: list[Effect] = []
        self._unfinished: list[Publish] = []
        self._forgotten: list[Window] = []
        self._tracks: dict[int, Track] = {}
        self._by_run: dict[tuple[str, str], Track] = {}
        self._windows: OrderedDict[int, Window] = OrderedDict()  # by first offset, so oldest first
        self._dirty: dict[int, Window] = {}
        self._ahead: dict[int, Ahead] = {}
        self._held = 0
        self._note_bytes = 0
        self._check_every = max(1, settings.remember_records // _CHECKS_PER_MEMORY)
        self._next_check = 0
        self._frozen_below = 0
        self._lost_to = 0
        self._lanes = Lanes(is_compiled=is_compiled)
        self._rows = _Rows(self._lanes)
        self._waiting = 0
        self._max_windows = max(_MIN_WINDOWS, settings.max_samples // _SAMPLES_PER_WINDOW)

    @classmethod
    def from_note(
        cls, settings: FoldSettings, topic: str, partition: int, note: ReplayNote, *, is_compiled: bool = True
    ) -> Fold:
        """Returns a fold that replays: feed it the log from `note.replay_from` to the committed offset."""
        fold = cls(settings, topic, partition, is_compiled=is_compiled)
        fold.is_replaying = True
        fold._next_check = note.next_check
        fold._frozen_below = note.frozen_below
        fold._lost_to = note.lost_to
        for age, floor in enumerate(note.floors):
            fold._add_track(Track.noted(floor, age - len(note.floors)))
        return fold

    # --- what the shell asks for ---------------------------------------------------------------------------------

    def feed(self, records: Sequence[Record]) -> None:
        """Folds records in the order of their offsets."""
        start = 0
        while start < len(records):
            end = min(len(records), start + _piece(records[start]))
            if not self.is_replaying:
                first = records[start].offset()
                if first >= self._next_check:
                    self._forget_unseen(first)
                if records[end - 1].offset() >= self._next_check:
                    end = bisect_left(records, self._next_check, lo=start, hi=end, key=_offset_of)
            self._feed(_part(records, start, end))
            start = end

    def _feed(self, records: Sequence[Record]) -> None:
        """Folds records among which there is nothing to look for.

        Samples of open windows are taken together, window by window; this changes the speed and nothing else.
        """
        done = self._take_read(records) if self._lanes.can_read else 0
        if done == len(records):
            return
        records = _part(records, done, len(records))
        events = _decoded(records)
        done = 0
        for first, end in _mixed(events):
            if done < first:
                self._take_each(records[done:first], events[done:first])
            done = first + self._take_mixed(_part(events, first, end), _part(records, first, end))
        if done < len(events):
            self._take_each(_part(records, done, len(events)), _part(events, done, len(events)))

    def _take_read(self, records: Sequence[Record]) -> int:
        """Takes records as the compiled part reads them, for as long as that is worth it, and returns how many."""
        lanes = self._lanes
        values = [record.value() for record in records]
        place = taken = stops = 0
        while place < len(values) and (stops < _STOPS or _SHORT_ROW * (stops - _STOPS) < taken):
            stretch = lanes.read(values, place, self._open_window)
            more = len(stretch.rows)
            if more:
                if self._held + more > self.settings.max_samples or not lanes.take_read(stretch, records):
                    break
                self._held += more
                self.counts["samples"] += more
                if stretch.num_batches:
                    self.counts["events_samples"] += stretch.num_batches
                taken += more
                place += stretch.num_values
                self._take_full_lanes()
            if place < len(values):  # a close marker mostly, then a sample that opens its window
                stops += 1
                self._take_each(records[place : place + 1], _decoded(records[place : place + 1]))
                place += 1
        return place

    def _take_mixed(self, samples: list[Any], records: Sequence[Record]) -> int:
        """Takes the samples of these records, of several windows, as far as they are plain, and returns how many."""
        lanes = self._lanes
        taken = 0
        while self._held + len(samples) - taken <= self.settings.max_samples:
            left = _part(samples, taken, len(samples)), _part(records, taken, len(records))
            more = lanes.take(*left, self._open_window)
            if more is None:
                break
            self._held += more
            self.counts["samples"] += more
            begun, taken = taken, taken + more
            if taken == len(samples) or (begun and more < _SHORT_STRETCH):
                break
            self._take_each(records[taken : taken + 1], samples[taken : taken + 1])  # it opens its window
            taken += 1
            if taken == len(samples):
                break
        self._take_full_lanes()
        return taken

    def _take_full_lanes(self) -> None:
        lanes = self._lanes
        if len(lanes) >= min(_MAX_IN_LANES, _MAX_IN_LANE * lanes.num_windows):
            self._take_lanes()

    def _take_lanes(self) -> None:
        """Brings the samples that are in lanes to their windows, which aren't what they should be before."""
        for (track, window), rows, cells, last in self._lanes.drain():
            window.add_rows(rows, cells)
            _see(track, window, last)

    def _take_each(self, records: Sequence[Record], events: list[Event | None]) -> None:
        """Takes events, whatever they are."""
        self._take_lanes()
        rows = self._rows
        find_row = rows.by_name.get
        find_window = self._open_window
        row: _Row | None = None
        run_id = scope = attempt = step = None
        begin = 0  # of the records whose samples are in rows
        row_begin = 0  # of those that are yet to be put into the row
        for place, event in enumerate(events):
            if (  # without a row the step is None, which no event has
                type(event) is Sample
                and event.step == step
                and event.run_id == run_id
                and event.attempt == attempt
                and event.scope == scope
            ):
                continue
            if row is not None:
                row.take(events, row_begin, place)
                row = step = None
            if type(event) is Sample:
                run_id, scope, attempt = event.run_id, event.scope, event.attempt
                row = find_row((run_id, scope, attempt, event.step))
                if row is not None and row.end >= 0:
                    row_begin, step = place, event.step
                    continue
            record = records[place]
            failure: EventError | None = None
            if event is None and record.value() is not None:
                try:
                    event = events[place] = decode(record.value())  # type: ignore[arg-type]
                except EventError as error:
                    failure = error
            if type(event) is Sample:
                row = rows.of(event, find_window)
                if row is not None:
                    row_begin = place
                    run_id, scope, attempt, step = event.run_id, event.scope, event.attempt, event.step
                    continue
            elif event is not None:  # single samples are what is left of the records: counting each would cost
                self.counts["events_samples" if type(event) is SampleBatch else "events_close"] += 1
                if type(event) is SampleBatch and rows.take_batch(event, place, find_window):
                    continue
            self._take_rows(records, events, begin, place)
            begin = place + 1
            if event is not None:
                self._take(record, record.offset(), event)
            elif failure is not None:
                self._set_aside(record, "undecodable", type(failure).__name__, str(failure))
            else:
                self.counts["tombstones"] += 1
        if row is not None:
            row.take(events, row_begin, len(events))
        self._take_rows(records, events, begin, len(events))

    def _open_window(self, name: WindowName) -> tuple[Track, Window] | None:
        """Returns the window of that name, with its track, where it is there and open."""
        run_id, scope, attempt, step = name
        track = self._find(_run(run_id, scope))
        if track is None or track.attempt != (attempt or 0):
            return None
        window = track.windows.get(step)
        return None if window is None or window.state is not State.OPEN else (track, window)

    def _take_rows(self, records: Sequence[Record], events: Sequence[Event | None], begin: int, end: int) -> None:
        """Takes the samples of all rows, which are those of the records from `begin` to before `end`."""
        if begin == end:
            return
        rows = self._rows.take_busy()
        sent = sum(len(samples) for _, samples, _ in rows)
        if self._held + sent > self.settings.max_samples:
            for place in range(begin, end):
                event = events[place]
                assert event is not None
                self._take(records[place], records[place].offset(), event)
            return
        taken = 0
        for row, samples, last_place in rows:
            taken += row.window.add(samples)
            _see(row.track, row.window, records[last_place])
            if len(samples) < _SHORT_ROW:
                self._waiting += len(samples)
        self.counts["samples"] += taken
        self.counts["duplicates"] += sent - taken
        self._held += taken
        if self._waiting > _MAX_WAITING:
            self._waiting = 0
            for window in self._windows.values():
                window.settle()

    def work_ahead(self) -> bool:
        """Works out the metrics of one open window that has changed, and returns whether there was one.

        For idle moments: where no more samples come, the close need not do it. No result is any other for it.
        """
        self._take_lanes()
        for window in islice(reversed(self._windows.values()), _MAX_AHEAD):
            ahead = self._ahead.get(window.first_offset)
            if (
                window.state is not State.CLOSED
                and len(window) >= _WORTH_WORKING_AHEAD
                and (ahead is None or ahead.num_samples != len(window))
            ):
                self._ahead.pop(window.first_offset, None)
                if len(self._ahead) == _MAX_AHEAD:
                    del self._ahead[next(iter(self._ahead))]
                self._ahead[window.first_offset] = work_ahead(window, self.settings)
                return True
        return False

    def take_effects(self) -> list[Effect]:
        """Returns what has been asked for since the last call."""
        effects, self._effects = self._effects, []
        return effects

    def take_corrections(self) -> list[Effect]:
        """Returns a correction for each closed window that changed since its last result, in the order of closing."""
        for window in sorted(self._dirty.values(), key=lambda one: one.close_offset):
            self._publish(window, is_correction=True)
        self._dirty.clear()
        return self.take_effects()

    @property
    def has_corrections(self) -> bool:
        return bool(self._dirty)

    @property
    def held_samples(self) -> int:
        return self._held

    def windows(self) -> Iterator[Window]:
        """Yields the windows in memory, oldest first, with all that was fed in them."""
        self._take_lanes()
        yield from self._windows.values()

    def open_windows(self) -> Iterator[Window]:
        """Yields the windows that are not closed, oldest first."""
        for window in self.windows():
            if window.state is not State.CLOSED:
                yield window

    def runs(self) -> Iterator[tuple[str, str]]:
        """Yields run and scope of each track whose name has been seen since the start."""
        yield from self._by_run

    def replay_from(self, next_offset: int) -> int:
        """Returns where the log must be read again from to rebuild the windows in memory."""
        return next(iter(self._windows), next_offset)

    def note(self, next_offset: int) -> ReplayNote:
        """Returns the note to commit with `next_offset`, the offset after the last record fed."""
        open_windows = [window.first_offset for window in self.open_windows()]
        return ReplayNote(
            replay_from=self.replay_from(next_offset),
            open_from=min(open_windows, default=next_offset),
            num_open=len(open_windows),
            next_check=self._next_check,
            frozen_below=self._frozen_below if self._has_frozen() else 0,
            settings=self.settings.digest(),
            windows=self.digest(),
            floors=tuple(track.note() for track in sorted(self._tracks.values(), key=lambda one: one.last_seen)),
            fold=FOLD_VERSION,
            lost_to=self._lost_to,
        )

    def digest(self) -> str:
        """Returns 16 hex digits that stand for the windows in memory: which, in what state, with how many samples.

        A frozen one's samples don't count: what was taken as late before it froze isn't any more when it is replayed.
        """
        self._take_lanes()
        state = sorted(
            (
                track.name,
                window.attempt,
                window.step,
                int(window.state),
                0 if self._is_frozen(window) else len(window),
                window.first_offset,
            )
            for track in self._tracks.values()
            for window in track.windows.values()
        )
        return hashlib.blake2b(msgspec.json.encode(state), digest_size=8).hexdigest()

    def end_replay(self) -> None:
        """Ends the silent part: from here on the fold forgets and asks again."""
        self.is_replaying = False
        self._effects.clear()
        self._dirty.clear()
        for window in self._windows.values():
            window.is_dirty = False
        self.counts.clear()

    def freeze(self, offset: int) -> None:
        """Lets windows closed below an offset take no more corrections: they were made from more than is here."""
        self._frozen_below = max(self._frozen_below, offset)

    def lose(self, end: int) -> None:
        """Takes note that something before offset `end` was lost unread: what may be short is not taken for whole.

        That are the open windows and, since a step may have begun unseen, those that open before a step opened behind
        `end` has been closed by the producers of their run. Where these say how many samples they sent, that counts.
        """
        self.freeze(end)
        self._lost_to = max(self._lost_to, end)
        for track in self._tracks.values():
            self._change(track, track.lose)
        for window in self.open_windows():
            window.may_be_short = True

    # --- one record ----------------------------------------------------------------------------------------------

    def _take(self, record: Record, offset: int, event: Event) -> None:
        self._finish_results()
        self._forgotten.clear()
        if type(event) is StepClose:
            self._rows.forget()
        if isinstance(event, StepClose) and event.reason not in (None, "closed"):
            self._take_own_marker(record, offset, event)
            return
        run = _run(event.run_id, event.scope)
        track = self._find(run)
        attempt = event.attempt or 0
        if track is None:
            track = Track.named(*run, attempt, offset)
            if self._lost_to and offset < self._lost_to + self.settings.remember_records:
                track.lose()
            self._add_track(track)
            self._by_run[run] = track
        track.last_seen = offset
        if attempt < track.attempt:
            self._set_aside(
                record,
                "superseded",
                "Superseded",
                f"step {event.step} is of attempt {attempt}, but attempt {track.attempt} of this run has begun",
            )
        else:
            if attempt > track.attempt:
                self._supersede(track, attempt, record, offset)
            if event.step <= track.floor or event.step in track.beside:
                if event.step in track.beside:
                    track.beside[event.step] = offset
                self._set_aside(
                    record,
                    "too_late",
                    "TooLate",
                    f"step {event.step} of attempt {attempt} was published and forgotten (floor {track.floor})",
                )
                self._look_for_redone(track, event)
            else:
                track.too_late = 0
                self._take_into_window(track, record, offset, event)
        self._make_room(offset)

    def _take_into_window(self, track: Track, record: Record, offset: int, event: Event) -> None:
        unix_ms = clock_unix_ms(record.timestamp())
        window = track.windows.get(event.step)
        if window is None:
            run_id, scope = _run(event.run_id, event.scope)
            window = Window(self.settings, run_id, scope, track.attempt, event.step, offset, unix_ms)
            window.may_be_short = track.may_have_lost(offset)
            track.open(window)
            self._windows[offset] = window
        window.last_offset = offset
        window.last_unix_ms = unix_ms
        if isinstance(event, StepClose):
            self._take_marker(track, window, record, offset, event)
        else:
            self._take_samples(track, window, record, offset, event)

    def _take_samples(
        self, track: Track, window: Window, record: Record, offset: int, event: Sample | SampleBatch
    ) -> None:
        samples: Sequence[SampleFields] = event.samples if isinstance(event, SampleBatch) else (event,)
        is_late = window.state is State.CLOSED
        if is_late and self._takes_no_more(window) and window.has_new(samples):
            self._set_aside(
                record,
                "late",
                "Late",
                f"step {window.step} of attempt {window.attempt} was closed at offset {window.close_offset}",
            )
            return
        taken = window.add(samples)
        self._held += taken
        self.counts["samples"] += taken
        self.counts["duplicates"] += len(samples) - taken
        if is_late:
            self.counts["late_samples"] += taken
            on_time = len(window) - window.late_samples
            is_much = window.late_samples >= max(_REDONE_SAMPLES, on_time // 2)
            if is_much and window.reason == "closed" and not window.is_called_redone:
                window.is_called_redone = True
                self._say_redone(
                    window.run_id,
                    window.scope,
                    window.attempt,
                    window.step,
                    f"{window.late_samples} samples came after this step had closed with {on_time}",
                )
            if window.is_dirty:
                self._dirty[window.first_offset] = window
        elif window.state is State.CLOSING and window.is_complete:
            self._close(track, window, "closed", record, offset)

    def _take_marker(self, track: Track, window: Window, record: Record, offset: int, marker: StepClose) -> None:
        if len(window.heard) >= MAX_PRODUCERS:
            return
        if (marker.producer or "") in window.heard:
            if window.disagrees(marker) and not window.is_called_disagreeing:
                window.is_called_disagreeing = True
                if not self.is_replaying:
                    self.counts["disagreeing_markers"] += 1
                self._notice(
                    "marker_disagrees",
                    window,
                    f"producer {marker.producer or ''!r} closed this step twice with different numbers: "
                    "are two trainers running under one run_id?",
                )
            return
        if window.state is not State.CLOSED:
            window.hear(marker)
            if window.is_complete:
                self._close(track, window, "closed", record, offset)
            elif window.is_closed_by_all and window.expected_samples is None:
                self._close(track, window, "data_lost", record, offset)
        elif not window.is_complete and not self._is_frozen(window):
            window.hear(marker)
            if window.is_complete or marker.dropped:
                window.change()
                self._dirty[window.first_offset] = window
        if window.state is State.CLOSING and window.closing_unix_ms is None:
            window.closing_unix_ms = window.last_unix_ms

    def _take_own_marker(self, record: Record, offset: int, marker: StepClose) -> None:
        """Takes a marker that the sidecar wrote: it ends a wait, or does nothing at all."""
        track = self._find(_run(marker.run_id, marker.scope))
        if track is None or (marker.attempt or 0) != track.attempt:
            return
        window = track.windows.get(marker.step)
        if window is None or window.state is State.CLOSED:
            return
        if marker.seen_offset is not None and window.last_offset > marker.seen_offset:
            return
        self._close(track, window, marker.reason or "closed", record, offset)
        self._make_room(offset)

    def _look_for_redone(self, track: Track, event: Event) -> None:
        track.too_late += 1
        if track.too_late == _REDONE_EVENTS:
            run_id, scope = _run(event.run_id, event.scope)
            self._say_redone(
                run_id, scope, track.attempt, event.step, f"{track.too_late} events in a row were too late"
            )

    def _say_redone(self, run_id: str, scope: str, attempt: int, step: int, what: str) -> None:
        if self.is_replaying:
            return
        self.counts["redone_steps"] += 1
        self._effects.append(
            Notice(
                "step_redone",
                run_id,
                scope,
                attempt,
                step,
                f"{what}: it looks like a trainer that does steps again; give its events a higher attempt",
            )
        )

    # --- the end of a window -------------------------------------------------------------------------------------

    def _close(self, track: Track, window: Window, reason: ResultReason, record: Record, offset: int) -> None:
        window.close(reason, offset, clock_unix_ms(record.timestamp()))
        track.closed += 1
        self._publish(window, is_correction=False)
        if self.is_replaying:
            return
        if track.whole_from < 0 and window.is_closed_by_all and window.first_offset >= self._lost_to:
            self._change(track, track.become_whole, offset)
        while track.closed > self.settings.remember_steps:
            lowest = track.lowest()
            if lowest is None or lowest.state is not State.CLOSED:
                return
            self._forget(track, lowest)

    def _publish(self, window: Window, *, is_correction: bool) -> None:
        window.is_dirty = False
        ahead = self._ahead.pop(window.first_offset, None)
        if self.is_replaying:
            return
        self.counts["corrections" if is_correction else "results"] += 1
        is_complete = window.is_complete
        if not is_complete and not is_correction:
            self.counts["incomplete_results"] += 1
        publish = Publish(
            StepMetrics(
                run_id=window.run_id,
                scope=window.scope,
                step=window.step,
                attempt=window.attempt,
                complete=is_complete,
                reason=window.reason,
                correction=is_correction,
                late_samples=window.late_samples,
                opened_unix_ms=window.opened_unix_ms,
                closed_unix_ms=window.closed_unix_ms,
                log=LogPlace(
                    topic=self.topic,
                    partition=self.partition,
                    first_offset=window.first_offset,
                    close_offset=window.close_offset,
                ),
                metrics={},
            ),
            partial(step_metrics, window, self.settings, ahead),
        )
        self._effects.append(publish)
        self._unfinished.append(publish)

    def _finish_results(self) -> None:
        """Works out what the results say, before a closed window changes."""
        for publish in self._unfinished:
            publish.finish()
        self._unfinished.clear()

    def _forget(self, track: Track, window: Window) -> None:
        """Forgets a closed window; a correction it still owes is published first."""
        if self._dirty.pop(window.first_offset, None) is not None:
            self._publish(window, is_correction=True)
        self._rows.forget()
        self._change(track, track.forget, window)
        del self._windows[window.first_offset]
        self._forgotten.append(window)  # it is taken apart with the next event: that takes a while, and results wait
        window.state = after(window.state, Happening.FORGET)
        self._held -= len(window)

    def _supersede(self, track: Track, attempt: int, record: Record, offset: int) -> None:
        """Ends an attempt: its open windows come out as they are, and all of it is forgotten."""
        if self.is_replaying:  # the note's attempt is the newest up to where it was written
            track.attempt = attempt
            return
        older = track.attempt
        windows = sorted(track.windows.values(), key=lambda one: one.step)
        for window in windows:
            if self._dirty.pop(window.first_offset, None) is not None:
                self._publish(window, is_correction=True)
        for window in windows:
            if window.state is not State.CLOSED:
                window.close("superseded", offset, clock_unix_ms(record.timestamp()))
                track.closed += 1
                self._publish(window, is_correction=False)
        for window in windows:
            self._forget(track, window)
            run_id, scope = window.run_id, window.scope
        self._change(track, track.raise_attempt, attempt)
        if windows:
            self._effects.append(
                Notice("attempt_superseded", run_id, scope, attempt, None, f"attempt {attempt} begins, {older} is over")
            )
        is_start_time = attempt >= _START_TIMES and (older >= _START_TIMES or older == 0)
        if attempt - older > _FAR_ATTEMPTS and not is_start_time:
            run_id, scope = self._name_of(track)
            self._effects.append(
                Notice(
                    "attempt_far_above",
                    run_id,
                    scope,
                    attempt,
                    None,
                    f"attempt {attempt} is far above {older}; events of lower attempts are dead letters from here on. "
                    "If it was sent by mistake, go on with attempts above it or with another run_id",
                )
            )

    def _forget_unseen(self, offset: int) -> None:
        """Forgets closed windows of runs unseen for `remember_records`, and closed ones that old in runs that go on.

        The latter lie above what goes on (one absurd marker, say) and are forgotten alone.
        """
        if any(track.closed for track in self._tracks.values()):
            self._take_lanes()
        self._next_check = (offset // self._check_every + 1) * self._check_every
        oldest = offset - self.settings.remember_records
        for track in self._tracks.values():
            if track.closed == 0:
                continue
            is_unseen = track.last_seen <= oldest
            newest_below = -1
            step_below = track.floor
            for step in sorted(track.windows):
                window = track.windows[step]
                went_on_below = window.last_offset < newest_below
                is_slip = step_below >= 0 and step - step_below > _FAR_STEPS
                if window.state is State.CLOSED and window.last_offset <= oldest:
                    if went_on_below or (is_unseen and is_slip):
                        self._forget_alone(track, window, offset)
                newest_below = max(newest_below, window.last_offset)
                step_below = step
            while is_unseen and (lowest := track.lowest()) is not None and lowest.state is State.CLOSED:
                self._forget(track, lowest)
        self._make_room(offset)

    def _forget_alone(self, track: Track, window: Window, offset: int) -> None:
        if len(track.beside) >= MAX_BESIDE:
            # A step may leave the list only when a replay can't meet its events any more.
            oldest = min(track.beside, key=lambda step: track.beside[step])
            if track.beside[oldest] >= self.replay_from(offset):
                return
            del track.beside[oldest]
        self._forget(track, window)

    def _make_room(self, offset: int) -> None:
        """Keeps samples, windows, runs and the note within their bounds."""
        if self.is_replaying:
            return
        while self._held > self.settings.max_samples or len(self._windows) > self._max_windows:
            self._evict(offset)
        while len(self._tracks) > self.settings.max_runs or self._note_bytes > MAX_FLOOR_BYTES:
            replay_from = self.replay_from(offset)
            unseen = min(
                (track for track in self._tracks.values() if not track.windows and track.last_seen < replay_from),
                key=lambda one: one.last_seen,
                default=None,
            )
            if unseen is not None:
                self._drop_track(unseen)
            elif self._windows:
                self._evict(offset)
            else:
                return  # what is left was last seen at this very record

    def _evict(self, offset: int) -> None:
        """Closes and forgets the lowest window of the run and scope that has been open the longest."""
        self._take_lanes()
        oldest = next(iter(self._windows.values()))
        track = self._by_run[oldest.run_id, oldest.scope]
        window = track.lowest()
        assert window is not None
        if window.state is not State.CLOSED:
            window.close("evicted", offset, window.last_unix_ms)
            track.closed += 1
            self.counts["evicted_windows"] += 1
            self._publish(window, is_correction=False)
            self._notice(
                "window_evicted",
                window,
                f"the oldest step made room: {self._held} samples, {len(self._windows)} windows and "
                f"{len(self._tracks)} runs are held in this partition; close steps, or raise max-samples or max-runs",
            )
        self._forget(track, window)

    # --- tracks --------------------------------------------------------------------------------------------------

    def _change(self, track: Track, change: Callable[..., None], *arguments: Any) -> None:
        """Makes a change to a track by which its floor may take more or less of the note."""
        self._note_bytes -= track.note_bytes
        change(*arguments)
        self._note_bytes += track.note_bytes

    def _find(self, run: tuple[str, str]) -> Track | None:
        track = self._by_run.get(run)
        if track is None and self._tracks:
            track = self._tracks.get(name_hash(*run))
            if track is not None:
                self._by_run[run] = track
        return track

    def _add_track(self, track: Track) -> None:
        self._tracks[track.name] = track
        self._note_bytes += track.note_bytes

    def _drop_track(self, track: Track) -> None:
        run_id, scope = self._name_of(track)
        del self._tracks[track.name]
        self._by_run.pop((run_id, scope), None)
        self._note_bytes -= track.note_bytes
        self.counts["floors_dropped"] += 1
        self._effects.append(
            Notice(
                "floor_dropped",
                run_id,
                scope,
                track.attempt,
                None,
                "this run was unseen for longest and made room for others: a straggler of it would open a step again",
            )
        )

    def _name_of(self, track: Track) -> tuple[str, str]:
        for run, one in self._by_run.items():
            if one is track:
                return run
        return (f"{track.name:016x}", "")

    # --- small things --------------------------------------------------------------------------------------------

    def _takes_no_more(self, window: Window) -> bool:
        return self.settings.late == "dead_letter" or self._is_frozen(window)

    def _is_frozen(self, window: Window) -> bool:
        return window.state is State.CLOSED and window.close_offset < self._frozen_below

    def _has_frozen(self) -> bool:
        return any(self._is_frozen(window) for window in self._windows.values())

    def _set_aside(self, record: Record, reason: DeadLetterReason, error: str, message: str) -> None:
        if not self.is_replaying:
            self.counts[f"dead_letters_{reason}"] += 1
            self._effects.append(SetAside(record, reason, error, message))

    def _notice(self, kind: NoticeKind, window: Window, message: str) -> None:
        if not self.is_replaying:
            self._effects.append(Notice(kind, window.run_id, window.scope, window.attempt, window.step, message))


class _Row:
    """Samples of one open window, from records that lie between those of others.

    Attributes:
        end: Place of the last record, -1 while it has none.
    """

    __slots__ = ("end", "samples", "track", "window")

    def __init__(self, track: Track, window: Window) -> None:
        self.track = track
        self.window = window
        self.samples: list[SampleFields] = []
        self.end = -1

    def take(self, events: Sequence[Any], begin: int, end: int) -> None:
        """Takes single samples."""
        if end - begin == 1:
            self.samples.append(events[begin])
        else:
            self.samples += events[begin:end]
        self.end = end - 1


class _Rows:
    """What a stretch of records has for windows that are open.

    Attributes:
        by_name: The rows by the names of their windows; some may have no samples.
    """

    def __init__(self, lanes: Lanes) -> None:
        self.by_name: dict[WindowName, _Row] = {}
        self._by_window: dict[int, _Row] = {}
        self._busy: list[_Row] = []
        self._lanes = lanes

    def forget(self) -> None:
        """Knows no window any more, since one may not be open now. No row may have samples."""
        self.by_name.clear()
        self._by_window.clear()
        self._lanes.forget()

    def take_busy(self) -> list[tuple[_Row, list[SampleFields], int]]:
        """Returns rows that have something, with their samples and last places, and leaves them without."""
        made = [(row, row.samples, row.end) for row in self._busy]
        for row in self._busy:
            row.samples = []
            row.end = -1
        self._busy.clear()
        return made

    def of(self, event: Sample | SampleBatch, find: FindWindow) -> _Row | None:
        """Returns the row of the window that an event is for, None where that isn't there and open."""
        name = event.run_id, event.scope, event.attempt, event.step
        row = self.by_name.get(name)
        if row is None:
            found = find(name)
            if found is None:
                return None
            # A window has several names: null stands for what is absent.
            row = self._by_window.get(found[1].first_offset)
            if row is None:
                row = self._by_window[found[1].first_offset] = _Row(*found)
            self.by_name[name] = row
        if row.end < 0:
            row.end = 0
            self._busy.append(row)
        return row

    def take_batch(self, event: SampleBatch, place: int, find: FindWindow) -> bool:
        """Takes several samples where their window is there and open, and returns whether it did."""
        row = self.of(event, find)
        if row is None:
            return False
        row.samples += event.samples
        row.end = place
        return True


def _piece(record: Record) -> int:
    """Returns how many records like this one to fold together."""
    return max(_MIN_PIECE, _PIECE_BYTES // (len(record.value() or b"") + 1))


def _part(items: _Items, begin: int, end: int) -> _Items:
    """Returns some of a list; all of it without a copy."""
    return items if end - begin == len(items) else items[begin:end]  # type: ignore[return-value]


def _decoded(records: Sequence[Record]) -> list[Event | None]:
    """Returns the event of each record, None for one that takes a closer look."""
    values = [record.value() for record in records]
    for decode_all in (decode_fast, decode_fast_msgpack):  # no value is both, and what it isn't it fails at once
        with suppress(*NOT_DECODED):
            return list(map(decode_all, values))  # type: ignore[arg-type]  # None raises TypeError
    made: list[Event | None] = []
    for value in values:
        try:
            made.append(decode_fast(value))  # type: ignore[arg-type]
        except NOT_DECODED:
            made.append(None)
    return made


def _mixed(events: Sequence[Event | None]) -> list[tuple[int, int]]:
    """Returns where single samples of several windows are together, so many that it is worth looking closer."""
    if not _may_be_mixed(events, 0, len(events)):
        return []
    kinds = list(map(type, events))
    if kinds.count(Sample) == len(kinds):
        return [(0, len(kinds))]
    others = [place for place, kind in enumerate(kinds) if kind is not Sample]
    bounds = zip([-1, *others], [*others, len(events)], strict=True)
    # Often it is a close marker, and what is on either side of it is of one window.
    return [(before + 1, end) for before, end in bounds if _may_be_mixed(events, before + 1, end)]


def _may_be_mixed(events: Sequence[Event | None], begin: int, end: int) -> bool:
    """Returns whether these are many, and not all of a few of them are of one window, or no single samples."""
    if end - begin < _SHORT_ROW:
        return False
    few = events[begin : end : (end - begin) // _LOOKED_AT]
    first = few[0]
    if type(first) is not Sample:
        return any(type(event) is Sample for event in few)
    return any(type(event) is not Sample or event.step != first.step or event.run_id != first.run_id for event in few)


def _run(run_id: str | None, scope: str | None) -> tuple[str, str]:
    return (DEFAULT_RUN_ID if run_id is None else run_id, DEFAULT_SCOPE if scope is None else scope)


def _see(track: Track, window: Window, last: Record) -> None:
    """Notes the last record of some that brought samples to an open window."""
    offset = last.offset()
    window.last_offset = offset
    window.last_unix_ms = clock_unix_ms(last.timestamp())
    if offset > track.last_seen:
        track.last_seen = offset
    track.too_late = 0


def _offset_of(record: Record) -> int:
    return record.offset()

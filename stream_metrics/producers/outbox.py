"""What the trainer's threads hand to the sending thread: a bounded queue, and the books of what was handed over.

The rules:
- All of it is guarded by one lock, held for queue and dictionary work only: never while encoding, on disk or on the
  network.
- Samples wait for room at most as long as they are told to. A close marker always finds room: it is small, and without
  it a whole step hangs.
- Every sample taken from a trainer ends in exactly one count: acknowledged, dropped (with its reason), or still
  pending.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from stream_metrics import events

MAX_WINDOWS: Final = 4096
"""Steps whose counts are kept; past it the one unused for longest is forgotten."""

MAX_RECORD_SAMPLES: Final = 512
MAX_RECORD_BYTES: Final = 400_000
"""Bounds of one `samples` event: well below the broker's usual limit of 1 MB a record."""

OVERHEAD_BYTES: Final = 50
"""What a queued sample takes in memory beside its payload."""

MAX_TRACKED_IDS: Final = 1_000_000
"""Samples of open steps whose own `sample_id`s are remembered, to tell a repeat from a new one; past it none are."""


@dataclass(slots=True, eq=False)
class Window:
    """What this producer emitted for one scope and step.

    Attributes:
        samples: Samples that the step must have from here: emitted ones, the dropped included, repeats not.
        next_position: The place of the next sample that comes without its own.
        own_ids: The `sample_id`s that came with samples.
        dropped: Reason to count.
        is_closed: A close marker was handed over.
    """

    scope: str
    step: int
    samples: int = 0
    next_position: int = 0
    own_ids: set[int | str] = field(default_factory=set)
    dropped: Counter[str] = field(default_factory=Counter)
    is_closed: bool = False


@dataclass(slots=True, eq=False)
class Batch:
    """Encoded samples of one window, enough for one record; the envelope is put around them when they are sent."""

    window: Window
    payloads: list[bytes] = field(default_factory=list)
    size_bytes: int = 0


class Marker(NamedTuple):
    """A close marker, encoded when it is sent: until then counts of what was dropped may be added."""

    window: Window
    event: events.StepClose


@dataclass(slots=True)
class Counts:
    """What became of the samples so far; a copy, from `RolloutProducer.counts`.

    Attributes:
        emitted: Taken from the trainer, the dropped included.
        acknowledged: Acknowledged by the broker, one sent again counted again.
        closes_acknowledged: Close markers acknowledged.
        spooled: Written to disk because they could not be sent; they are sent later.
        dropped: Reason to count: `unencodable`, `queue_full`, `too_large`, `unsent` (still unsent at the end, no room
            on disk).
        pending: In memory, not acknowledged yet.
    """

    emitted: int = 0
    acknowledged: int = 0
    closes_acknowledged: int = 0
    spooled: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    pending: int = 0


class Outbox:
    """The bounded queue between the trainer and the sending thread."""

    def __init__(self, *, max_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Makes an empty one that holds at most `max_bytes` of encoded samples."""
        self.counts = Counts()
        self._clock = clock
        self._max_bytes = max_bytes
        self._bytes = 0
        self._queue: deque[Batch | Marker] = deque()
        self._pending_markers = 0
        self._tracked_ids = 0
        self._waiting = 0
        self._windows: OrderedDict[tuple[str, int], Window] = OrderedDict()
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._work = threading.Condition(self._lock)
        self._settled = threading.Condition(self._lock)
        self._is_awake = False

    @property
    def is_empty(self) -> bool:
        """True when nothing waits here."""
        return not self._queue

    @property
    def is_pressed(self) -> bool:
        """True while a trainer's thread waits for room."""
        return self._waiting > 0

    def reserve(self, scope: str, step: int, samples: int, *, is_repeat_if_closed: bool) -> tuple[Window, int, int]:
        """Returns the step's window, the position of the first of `samples` samples, and the first position not used
        before.

        Args:
            scope: Prefix of the metrics' keys.
            step: The step.
            samples: How many places are taken.
            is_repeat_if_closed: Start at 0 again where the step is closed: the whole step is being emitted once more.
        """
        with self._lock:
            window = self._window(scope, step)
            fresh_from = window.next_position
            first = 0 if is_repeat_if_closed and window.is_closed else fresh_from
            window.next_position = max(fresh_from, first + samples)
            return window, first, fresh_from

    def give_back(self, window: Window, first: int, samples: int) -> None:
        """Frees reserved places of which nothing was sent, unless others were reserved after them."""
        with self._lock:
            if window.next_position == first + samples:
                window.next_position = first

    def expect(self, window: Window, samples: int, fresh: int) -> None:
        """Books `samples` emitted samples, of which the step did not have `fresh` before."""
        with self._lock:
            self.counts.emitted += samples
            window.samples += fresh

    def is_known_id(self, window: Window, sample_id: int | str) -> bool:
        """Returns whether the step had this `sample_id` before, and remembers it."""
        with self._lock:
            if sample_id in window.own_ids:
                return True
            if self._tracked_ids < MAX_TRACKED_IDS:
                window.own_ids.add(sample_id)
                self._tracked_ids += 1
            return False

    def drop(self, window: Window | None, reason: str, samples: int) -> None:
        """Counts samples that will never be sent."""
        with self._lock:
            self.counts.dropped[reason] += samples
            if window is not None:
                window.dropped[reason] += samples

    def put(self, window: Window, payloads: Sequence[bytes], wait_seconds: float) -> int:
        """Returns how many of the payloads, from the first, found room within the time."""
        deadline = None
        done = 0
        with self._lock:
            while True:
                before = done
                while done < len(payloads) and self._bytes < self._max_bytes:
                    self._append(window, payloads[done])
                    done += 1
                self.counts.pending += done - before
                self._wake()
                now = self._clock()
                deadline = now + wait_seconds if deadline is None else deadline
                if done == len(payloads) or now >= deadline:
                    return done
                self._waiting += 1
                try:
                    self._room.wait(deadline - now)
                finally:
                    self._waiting -= 1

    def put_marker(self, window: Window, make: Callable[[Window], events.StepClose]) -> None:
        """Queues the close marker that `make` returns for the window as it is now."""
        with self._lock:
            window.is_closed = True
            self._queue.append(Marker(window, make(window)))
            self._forget_ids(window)
            self._pending_markers += 1
            self._wake()

    def window(self, scope: str, step: int) -> Window:
        """Returns the step's window, a new one where there is none."""
        with self._lock:
            return self._window(scope, step)

    def take(self) -> Batch | Marker | None:
        """Returns what was put first of all that is still here."""
        with self._lock:
            if not self._queue:
                return None
            first = self._queue.popleft()
            if isinstance(first, Batch):
                self._bytes -= first.size_bytes
                if self._waiting and self._bytes < self._max_bytes:
                    self._room.notify_all()
            return first

    def settle(
        self, *, acknowledged: int = 0, closes: int = 0, spooled: int = 0, from_memory: int = 0, markers: int = 0
    ) -> None:
        """Books what became of samples and markers; `from_memory` samples and `markers` are pending no more."""
        with self._lock:
            self.counts.acknowledged += acknowledged
            self.counts.closes_acknowledged += closes
            self.counts.spooled += spooled
            self.counts.pending -= from_memory
            self._pending_markers -= markers
            if not self.counts.pending and not self._pending_markers:
                self._settled.notify_all()

    def wait_settled(self, is_spool_empty: Callable[[], bool], seconds_left: Callable[[], float]) -> bool:
        """Returns True once nothing is pending and the spool is empty, False once no time is left."""
        with self._lock:
            while True:
                is_settled = not self.counts.pending and not self._pending_markers
                if is_settled and is_spool_empty():
                    return True
                left = seconds_left()
                if left <= 0:
                    return False
                # Nobody tells when the spool's last file is gone.
                self._settled.wait(min(left, 0.05) if is_settled else left)

    def wait(self, seconds: float) -> None:
        """Returns when something was put since the last call, or after the time."""
        with self._lock:
            if not self._is_awake and not self._queue:
                self._work.wait(seconds)
            self._is_awake = False

    def wake(self) -> None:
        """Makes `wait` return."""
        with self._lock:
            self._wake()

    def snapshot(self) -> Counts:
        """Returns a copy of the counts."""
        with self._lock:
            counts = self.counts
            return Counts(
                counts.emitted,
                counts.acknowledged,
                counts.closes_acknowledged,
                counts.spooled,
                Counter(counts.dropped),
                counts.pending,
            )

    def _append(self, window: Window, payload: bytes) -> None:
        size = len(payload) + OVERHEAD_BYTES
        last = self._queue[-1] if self._queue else None
        if (
            not isinstance(last, Batch)
            or last.window is not window
            or len(last.payloads) >= MAX_RECORD_SAMPLES
            or last.size_bytes + size > MAX_RECORD_BYTES
        ):
            last = Batch(window)
            self._queue.append(last)
        last.payloads.append(payload)
        last.size_bytes += size
        self._bytes += size

    def _wake(self) -> None:
        self._is_awake = True
        self._work.notify_all()

    def _window(self, scope: str, step: int) -> Window:
        key = (scope, step)
        window = self._windows.get(key)
        if window is None:
            window = self._windows[key] = Window(scope, step)
            if len(self._windows) > MAX_WINDOWS:
                self._forget_ids(self._windows.popitem(last=False)[1])
        else:
            self._windows.move_to_end(key)
        return window

    def _forget_ids(self, window: Window) -> None:
        self._tracked_ids -= len(window.own_ids)
        window.own_ids = set()

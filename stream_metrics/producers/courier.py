"""The sending end: takes from the outbox, keeps what Kafka doesn't take, and forgets only what is acknowledged.

The rules:
- One thread, `pump` after `pump`. Kafka's callbacks only note what happened (one that raises loses records); it is
  dealt with between the calls.
- First in, first out: what a former process left, then what was spooled, then the outbox. A close marker leaves only
  once all samples of its window before it are acknowledged, so it can't overtake one that had to be sent again.
- No acknowledgement for `spool_after_seconds`: all that is in memory goes to disk, and is tried again from there.
- A record over the broker's limit may have taken others down with it: its samples are tried again one by one, alone,
  and only one that is refused alone is set aside.
"""

from __future__ import annotations

import bisect
import contextlib
import ctypes
import itertools
import json
import logging
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from confluent_kafka import KafkaError, KafkaException

from stream_metrics import events
from stream_metrics.producers.outbox import Batch, Marker, Outbox
from stream_metrics.producers.spool import Segment, Spool, read_lines

WindowId = tuple[str, str, int, int]
"""run_id, scope, attempt, step."""

MAX_IN_FLIGHT_BYTES: Final = 8 * 2**20

_log = logging.getLogger(__name__)
_size_errors: Final = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE)
_first_backoff_seconds: Final = 0.2
_last_backoff_seconds: Final = 10.0


class KafkaClient(Protocol):
    """What is used of `confluent_kafka.Producer`."""

    def produce(
        self, topic: str, value: bytes, key: bytes, *, on_delivery: Callable[[KafkaError | None, Any], None]
    ) -> None: ...

    def poll(self, timeout: float) -> int: ...

    def flush(self, timeout: float) -> int: ...

    def purge(self, in_queue: bool = True, in_flight: bool = True, blocking: bool = True) -> None: ...

    def __len__(self) -> int: ...


Connect = Callable[[Callable[[KafkaError], None]], KafkaClient]
"""Makes a client that reports its errors to the given function."""


@dataclass(slots=True, eq=False)
class _Parcel:
    """One record on its way.

    Attributes:
        order: Its place among all that this courier took.
        window: What it belongs to.
        value: The record's value; a marker's is made when it is sent.
        samples: How many samples are in it.
        close: The marker that it is.
        is_spooled: It was read from the spool, and stays there until it is dealt with.
        is_alone: It is sent with nothing else in flight.
    """

    order: int
    window: WindowId
    value: bytes
    samples: int
    close: events.StepClose | None = None
    is_spooled: bool = False
    is_alone: bool = False


class Courier:
    """Carries events from an outbox to a topic; not thread-safe."""

    def __init__(
        self,
        outbox: Outbox,
        spool: Spool | None,
        connect: Connect,
        *,
        topic: str,
        run_id: str,
        attempt: int,
        spool_after_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Makes one that sends nothing yet.

        Args:
            outbox: Where the trainer's threads put events.
            spool: Where events wait that can't be sent; None lets them wait in memory only.
            connect: Makes a client, again after a fatal error or an outage.
            topic: The input topic.
            run_id: The run.
            attempt: The run's attempt, of all that comes from the outbox.
            spool_after_seconds: How long without any acknowledgement until events go to disk.
            clock: Monotonic seconds.
        """
        self._outbox = outbox
        self._spool = spool
        self._connect = connect
        self._topic = topic
        self._run_id = run_id
        self._attempt = attempt
        self._spool_after_seconds = spool_after_seconds
        self._clock = clock
        self._client: KafkaClient | None = None
        self._envelopes: tuple[WindowId, bytes] | None = None

        self._flying: set[_Parcel] = set()
        self._flying_bytes = 0
        self._open: Counter[WindowId] = Counter()
        self._reports: deque[tuple[_Parcel, KafkaError | None]] = deque()
        self._errors: deque[KafkaError] = deque(maxlen=64)

        self._order = itertools.count()
        self._suspects: deque[_Parcel] = deque()  # perhaps too large; sent one by one, before all else
        self._again: list[_Parcel] = []  # refused for now, or a marker that waits for its samples; in order
        self._is_held = False  # the first of these is such a marker
        self._overflow: deque[_Parcel] = deque()  # no room on disk; after the spool, before the outbox
        self._segment: Segment | None = None
        self._lines: deque[bytes] = deque()
        self._unsettled_lines = 0
        self._lost: dict[WindowId, Counter[str]] = {}

        self._moved_at = clock()
        self._retry_at = 0.0
        self._failures = 0
        self._said: set[str] = set()
        self._is_down = False
        self._is_broken = False

    @property
    def is_idle(self) -> bool:
        """True when all that was put is acknowledged, dropped or rejected, the spool included."""
        return not self._has_memory() and self._outbox.is_empty and (self._spool is None or self._spool.is_empty)

    @property
    def is_down(self) -> bool:
        """True from the first sign that the broker can't be reached until something is acknowledged."""
        return self._is_down

    def connect(self) -> None:
        """Makes the client; not needed, but tells wrong settings at once.

        Raises:
            KafkaException: librdkafka refuses its settings.
        """
        self._client = self._connect(self._errors.append)

    def leak(self) -> None:
        """Keeps an inherited client from ever being freed in a forked child: that would wait for threads that aren't
        there.
        """
        if self._client is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._client))

    def pump(self, wait_seconds: float) -> None:
        """Sends what can be sent and deals with what came back; waits at most `wait_seconds` where there is nothing
        to do.
        """
        if self._client is None and not self._reconnect():
            self._outbox.wait(min(wait_seconds, max(0.0, self._retry_at - self._clock())) or 0.01)
            self._judge()
            return
        self._fill()
        self._serve(wait_seconds)
        self._settle()
        self._judge()

    def finish(self) -> None:
        """Moves all that is still in memory to disk, and counts as dropped what finds no room there. Sends no more."""
        _old = self._drop_client()
        self._to_disk()
        left = [*self._suspects, *self._again, *self._overflow]
        while (parcel := self._from_outbox()) is not None:
            left.append(parcel)
        lost = sum(parcel.samples for parcel in left)
        if left:
            for parcel in left:
                self._dealt_with(parcel)
            self._outbox.drop(None, "unsent", lost)
            _log.error(
                "%d samples and %d close markers of run %r are lost: not sent, and %s",
                lost,
                sum(parcel.close is not None for parcel in left),
                self._run_id,
                "there is no spool directory" if self._spool is None else self._spool.trouble,
            )
        if self._spool is not None:
            if not self._spool.is_empty:
                _log.warning(
                    "%d bytes of events wait in %s for the next start of run %r, or for `stream-metrics produce`",
                    self._spool.backlog_bytes,
                    self._spool.directory,
                    self._run_id,
                )
            self._spool.close()

    # Sending

    def _fill(self) -> None:
        if self._clock() < self._retry_at:
            return
        while self._flying_bytes < MAX_IN_FLIGHT_BYTES:
            parcel = self._next()
            if parcel is None:
                return
            self._is_held = parcel.close is not None and parcel.window in self._open
            if self._is_held:
                self._put_again(parcel)
                return
            if not self._send(parcel):
                return

    def _next(self) -> _Parcel | None:
        if len(self._flying) == 1 and next(iter(self._flying)).is_alone:
            return None
        if self._suspects:
            return None if self._flying else self._suspects.popleft()
        if self._again:
            return self._again.pop(0)
        if self._spool is not None and not self._spool.is_empty:
            # None while the rest of a segment is in the air: what comes after it must not overtake it.
            return self._from_spool(self._spool)
        if self._overflow:
            return self._overflow.popleft()
        return self._from_outbox()

    def _put_again(self, parcel: _Parcel) -> None:
        bisect.insort(self._again, parcel, key=lambda other: other.order)

    def _from_outbox(self) -> _Parcel | None:
        taken = self._outbox.take()
        if taken is None:
            return None
        if isinstance(taken, Marker):
            window = (self._run_id, taken.window.scope, self._attempt, taken.window.step)
            return _Parcel(next(self._order), window, b"", 0, close=taken.event)
        return self._pack(taken)

    def _pack(self, batch: Batch) -> _Parcel:
        window = (self._run_id, batch.window.scope, self._attempt, batch.window.step)
        if self._envelopes is None or self._envelopes[0] != window:
            self._envelopes = (window, _envelope(window))
        head = self._envelopes[1]
        if len(batch.payloads) == 1:
            fields = batch.payloads[0][1:]
            value = b'{"type":"sample",' + head + (b"," if fields != b"}" else b"") + fields
        else:
            value = b'{"type":"samples",' + head + b',"samples":[' + b",".join(batch.payloads) + b"]}"
        return _Parcel(next(self._order), window, value, len(batch.payloads))

    def _from_spool(self, spool: Spool) -> _Parcel | None:
        if self._segment is None:
            self._segment = spool.oldest()
            if self._segment is None:
                return None
            try:
                self._lines.extend(read_lines(self._segment.path))
            except OSError as error:
                self._say(
                    f"read {error.errno}", logging.ERROR, "%s can't be read, and is left: %s", self._segment.path, error
                )
            self._unsettled_lines = len(self._lines)
        while self._lines:
            line = self._lines.popleft()
            parcel = _parse(next(self._order), line)
            if parcel is not None:
                return parcel
            self._unsettled_lines -= 1
            self._say("torn line", logging.WARNING, "a spooled line is no event, and is set aside: %r", line[:200])
            spool.reject(line)
        self._end_segment()
        return None

    def _end_segment(self) -> None:
        if self._segment is not None and not self._lines and self._unsettled_lines == 0 and self._spool is not None:
            self._spool.done(self._segment)
            self._segment = None

    def _send(self, parcel: _Parcel) -> bool:
        assert self._client is not None
        reports = self._reports
        value = parcel.value if parcel.close is None else self._marker(parcel)
        try:
            self._client.produce(
                self._topic,
                value,
                parcel.window[0].encode("utf-8"),
                on_delivery=lambda error, _message: reports.append((parcel, error)),
            )
        except BufferError:
            self._put_again(parcel)
            return False
        except KafkaException as error:
            cause = error.args[0]
            if cause.code() in _size_errors:
                self._too_large(parcel)
                return True
            self._refused(parcel, cause)
            return False
        self._flying.add(parcel)
        self._flying_bytes += len(value)
        self._open[parcel.window] += 1
        return True

    def _marker(self, parcel: _Parcel) -> bytes:
        close = parcel.close
        assert close is not None
        lost = self._lost.get(parcel.window)
        if lost:
            dropped = Counter(close.dropped or {})
            dropped.update(lost)
            close.dropped = dict(dropped)
            del self._lost[parcel.window]
        parcel.value = events.encode(close)
        return parcel.value

    def _serve(self, wait_seconds: float) -> None:
        assert self._client is not None
        if self._flying:
            wait = min(wait_seconds, 0.05 if self._is_down else 0.01)
            # A flush doesn't wait for companions of a record, so the marker that waits for these leaves soonest.
            if self._is_held or self._suspects:
                self._client.flush(wait)
            else:
                self._client.poll(wait)
        elif self._clock() < self._retry_at:
            self._client.poll(min(wait_seconds, self._retry_at - self._clock()))
        else:
            self._client.poll(0)
            if not self._has_memory() and self._segment is None and (self._spool is None or self._spool.is_empty):
                self._outbox.wait(wait_seconds)

    # What came back

    def _settle(self) -> None:
        while self._reports:
            parcel, error = self._reports.popleft()
            if parcel not in self._flying:
                continue
            self._land(parcel)
            if error is None:
                self._acknowledged(parcel)
            elif error.code() in _size_errors:
                self._too_large(parcel)
            else:
                self._refused(parcel, error)
        while self._errors:
            self._heard(self._errors.popleft())
        self._end_segment()

    def _land(self, parcel: _Parcel) -> None:
        self._flying.discard(parcel)
        self._flying_bytes -= len(parcel.value)
        self._open[parcel.window] -= 1
        if not self._open[parcel.window]:
            del self._open[parcel.window]

    def _acknowledged(self, parcel: _Parcel) -> None:
        self._moved_at = self._clock()
        self._failures = 0
        if self._is_down:
            self._is_down = False
            self._said.clear()
            _log.warning("the broker takes events of run %r again", self._run_id)
        self._outbox.settle(
            acknowledged=parcel.samples,
            closes=parcel.close is not None,
        )
        self._dealt_with(parcel)

    def _dealt_with(self, parcel: _Parcel) -> None:
        if parcel.is_spooled:
            self._unsettled_lines -= 1
        else:
            self._outbox.settle(from_memory=parcel.samples, markers=parcel.close is not None)

    def _refused(self, parcel: _Parcel, error: KafkaError) -> None:
        if parcel.is_alone:
            self._suspects.appendleft(parcel)
        else:
            self._put_again(parcel)
        if error.code() in (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT):
            return
        if error.fatal() or error.code() == KafkaError._FATAL:
            self._is_broken = True
        self._back_off()
        self._heard(error)

    def _back_off(self) -> None:
        now = self._clock()
        if now >= self._retry_at:
            self._retry_at = now + min(_last_backoff_seconds, _first_backoff_seconds * 2**self._failures)
            self._failures = min(self._failures + 1, 16)

    def _heard(self, error: KafkaError) -> None:
        if error.fatal() or error.code() == KafkaError._FATAL:
            self._is_broken = True
        self._is_down = True
        self._say(
            str(error.code()),
            logging.WARNING,
            "Kafka doesn't take events of run %r now (%s); they wait, and training goes on",
            self._run_id,
            error,
        )

    def _too_large(self, parcel: _Parcel) -> None:
        parts = _split(parcel) if parcel.samples > 1 else [parcel]
        if parcel.samples == 1 and parcel.is_alone:
            self._set_aside(parcel)
            return
        if parcel.is_spooled:
            self._unsettled_lines += len(parts) - 1
        for part in parts:
            part.is_alone = True
        self._suspects.extend(parts)

    def _set_aside(self, parcel: _Parcel) -> None:
        is_kept = self._spool is not None and self._spool.reject(parcel.value)
        self._say(
            "too large",
            logging.ERROR,
            "a sample of %d bytes (run %r, scope %r, step %d) is over the broker's limit and is dropped%s",
            len(parcel.value),
            *(parcel.window[0], parcel.window[1], parcel.window[3]),
            f"; it is in {self._spool.directory}" if is_kept and self._spool is not None else "",
        )
        self._outbox.drop(None, "too_large", parcel.samples)
        self._lost.setdefault(parcel.window, Counter())["too_large"] += parcel.samples
        self._dealt_with(parcel)

    # Outages

    def _judge(self) -> None:
        """Decides whether it is time to move to disk, and whether the client must be replaced."""
        if self._is_broken:
            self._is_broken = False
            self._drop_client()
            self._back_off()
        now = self._clock()
        if not self._has_memory() and self._outbox.is_empty:
            self._moved_at = now
        elif self._spool is None:
            return
        elif now - self._moved_at >= self._spool_after_seconds:
            self._moved_at = now
            self._is_down = True
            self._say("outage", logging.WARNING, "no acknowledgement from Kafka for %.1f s", self._spool_after_seconds)
            _old = self._drop_client()
            self._to_disk()
        elif self._outbox.is_pressed and (self._flying_bytes >= MAX_IN_FLIGHT_BYTES or self._is_down):
            self._outbox_to_disk(self._spool)

    def _has_memory(self) -> bool:
        return bool(self._flying or self._again or self._suspects or self._overflow)

    def _to_disk(self) -> None:
        """Moves all that is in memory to the spool, oldest first; what finds no room stays. Nothing may be in the
        air.
        """
        self._lines.clear()
        self._segment = None
        self._unsettled_lines = 0
        waiting = [parcel for parcel in (*self._suspects, *self._again) if not parcel.is_spooled]
        waiting.sort(key=lambda parcel: parcel.order)
        self._suspects.clear()
        self._again.clear()
        self._is_held = False
        self._overflow.extendleft(reversed(waiting))
        if self._spool is not None:
            self._outbox_to_disk(self._spool)

    def _outbox_to_disk(self, spool: Spool) -> None:
        while self._overflow:
            if not self._keep(spool, self._overflow[0]):
                return
            self._overflow.popleft()
        while (parcel := self._from_outbox()) is not None:
            if not self._keep(spool, parcel):
                self._overflow.append(parcel)
                return

    def _keep(self, spool: Spool, parcel: _Parcel) -> bool:
        value = parcel.value if parcel.close is None else self._marker(parcel)
        if not spool.append([value]):
            self._say("spool", logging.ERROR, "%s", spool.trouble)
            return False
        self._outbox.settle(spooled=parcel.samples)
        self._dealt_with(parcel)
        self._say(
            "spooled",
            logging.WARNING,
            "events of run %r go to %s until Kafka takes them",
            self._run_id,
            spool.directory,
        )
        return True

    def _reconnect(self) -> bool:
        if self._clock() < self._retry_at:
            return False
        try:
            self.connect()
        except KafkaException as error:
            self._back_off()
            self._say("connect", logging.ERROR, "no Kafka client for run %r: %s", self._run_id, error)
            return False
        return True

    def _drop_client(self) -> KafkaClient | None:
        """Takes everything back from the client, and returns it: freeing it may block, so do that last."""
        client, self._client = self._client, None
        if client is None:
            return None
        with contextlib.suppress(KafkaException):
            client.purge(blocking=False)
        deadline = self._clock() + 1.0
        while self._flying and self._clock() < deadline:
            client.poll(0.05)
            self._settle()
        for parcel in list(self._flying):
            self._land(parcel)
            self._put_again(parcel)
        return client

    def _say(self, cause: str, level: int, message: str, *arguments: object) -> None:
        """Logs once per cause, until the broker takes events again."""
        if cause not in self._said:
            self._said.add(cause)
            _log.log(level, message, *arguments)


def _envelope(window: WindowId) -> bytes:
    run_id, scope, attempt, step = window
    named = json.dumps({"run_id": run_id, "scope": scope, "attempt": attempt, "step": step}, ensure_ascii=False)
    return named[1:-1].encode("utf-8")


def _parse(order: int, line: bytes) -> _Parcel | None:
    try:
        event = events.decode(line)
    except events.EventError:
        return None
    window = (
        event.run_id if event.run_id is not None else events.DEFAULT_RUN_ID,
        event.scope if event.scope is not None else events.DEFAULT_SCOPE,
        event.attempt if event.attempt is not None else 0,
        event.step,
    )
    samples = (
        1 if isinstance(event, events.Sample) else len(event.samples) if isinstance(event, events.SampleBatch) else 0
    )
    close = event if isinstance(event, events.StepClose) else None
    return _Parcel(order, window, line, samples, close=close, is_spooled=True)


def _split(parcel: _Parcel) -> list[_Parcel]:
    batch = json.loads(parcel.value)
    parts = []
    for fields in batch.pop("samples"):
        value = json.dumps({**fields, **batch, "type": "sample"}, ensure_ascii=False, separators=(",", ":"))
        parts.append(_Parcel(parcel.order, parcel.window, value.encode("utf-8"), 1, is_spooled=parcel.is_spooled))
    return parts

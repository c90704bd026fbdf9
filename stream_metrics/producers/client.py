"""`RolloutProducer`: emits training samples and closes steps, from any thread of a trainer.

The rules:
- A call never waits longer than its budget, and never raises into the trainer unless `raise_errors` asks for it.
- Samples are read and encoded in the call, since the trainer may change them afterwards; all else happens on one
  thread of ours.
- What was dropped is counted, logged once per cause, and told to the sidecar in the step's close marker.
- A forked child gets its own queue, thread and client at its first call, and a name of its own; the parent's are left
  untouched.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from confluent_kafka import KafkaError, KafkaException, Producer

from stream_metrics import events
from stream_metrics.producers.courier import Connect, Courier, KafkaClient
from stream_metrics.producers.encoding import UnencodableSampleError, encode_fields, sample_fields, step_number
from stream_metrics.producers.outbox import Counts, Outbox, Window
from stream_metrics.producers.spool import Spool

DEFAULT_TOPIC: Final = "rollout-samples"
ATTEMPT_VARIABLES: Final = ("STREAM_METRICS_ATTEMPT", "TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
SPOOL_VARIABLE: Final = "STREAM_METRICS_SPOOL_DIRECTORY"

_log = logging.getLogger(__name__)
_producers: weakref.WeakSet[RolloutProducer] = weakref.WeakSet()


class EmitError(Exception):
    """A sample or a marker was not taken; only where `raise_errors` asks for it. The message says which and why."""


class RolloutProducer:
    """Emits training samples and closes steps; safe to share between threads.

        with RolloutProducer("broker:9092", run_id="my-run") as producer:
            for step in range(steps):
                producer.emit_step(samples, step=step)
                producer.close_step(step)

    A sample is a mapping or an object with the names of the contract: `group_index`, `rollout_id`, `index`, `reward`,
    `metadata`, `response_length`, `status` and so on (`docs/producing.md` has all).
    """

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str = DEFAULT_TOPIC,
        *,
        run_id: str = events.DEFAULT_RUN_ID,
        scope: str = events.DEFAULT_SCOPE,
        producer: str = "",
        producers: int = 1,
        attempt: int | None = None,
        budget_seconds: float = 0.2,
        close_seconds: float = 5.0,
        raise_errors: bool = False,
        metadata_keys: Sequence[str] = (),
        max_queue_bytes: int = 32 * 2**20,
        spool_directory: str | os.PathLike[str] | None = None,
        max_spool_bytes: int = 256 * 2**20,
        spool_after_seconds: float = 10.0,
        client_config: Mapping[str, Any] | None = None,
        connect: Connect | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Makes a producer, and starts to send what an earlier process of the run left in the spool.

        Args:
            bootstrap_servers: `host:port`, several with commas.
            topic: The sidecar's input topic.
            run_id: The training job; one run stays on one partition.
            scope: Prefix of the metrics' keys where a call gives none.
            producer: This process's name among those that emit samples of the same steps.
            producers: How many these are; a step closes once all have closed it.
            attempt: The trainer's try, the same in all processes of one try and higher in the next. None takes it from
                STREAM_METRICS_ATTEMPT, TORCHELASTIC_RESTART_COUNT or SLURM_RESTART_COUNT, whichever is there first,
                else 0.
            budget_seconds: Longest wait of a call, for room in the queue. Reading and encoding the samples themselves
                comes on top: a few microseconds each.
            close_seconds: Longest wait of `close`, and of the interpreter's exit, for the rest to be sent.
            raise_errors: Raise `EmitError` into the trainer instead of counting and logging.
            metadata_keys: Names in a sample's metadata to send beside `raw_reward`.
            max_queue_bytes: Bound of encoded samples in memory; about 8 MiB in flight come on top.
            spool_directory: Where events wait that can't be sent; None takes STREAM_METRICS_SPOOL_DIRECTORY, else a
                folder of this user in the system's temporary directory. "" has none: what can't be sent is dropped.
            max_spool_bytes: Bound of these files.
            spool_after_seconds: How long without any acknowledgement until events go to disk.
            client_config: librdkafka settings over ours, for instance for TLS and SASL.
            connect: Makes the Kafka client; for tests.
            clock: Monotonic seconds; for tests.

        Raises:
            ValueError: An argument is out of its range, or librdkafka refuses its settings.
        """
        for name, text in (("run_id", run_id), ("scope", scope), ("producer", producer)):
            if not isinstance(text, str) or len(text) > 480 or not _is_utf8(text):
                raise ValueError(f"{name} must be a text of at most 480 characters, not {text!r:.100}")
        if producers < 1:
            raise ValueError(f"producers must be at least 1, not {producers}")
        self.run_id = run_id
        self.scope = scope
        self.producer = producer
        self.producers = producers
        self.attempt = _attempt(attempt)
        self.topic = topic
        self._budget_seconds = budget_seconds
        self._close_seconds = close_seconds
        self._raise_errors = raise_errors
        self._metadata_keys = tuple(metadata_keys)
        self._max_queue_bytes = max_queue_bytes
        self._spool_directory = _spool_directory(spool_directory)
        self._max_spool_bytes = max_spool_bytes
        self._spool_after_seconds = spool_after_seconds
        self._connect = connect or _connector(bootstrap_servers, client_config or {})
        self._clock = clock
        self._is_closed = False
        self._is_child = False
        self._said: set[str] = set()
        self._set_up()
        try:
            self._courier.connect()
        except KafkaException as error:
            raise ValueError(f"librdkafka refuses the settings: {error}") from None
        _producers.add(self)
        if self._spool is not None and self._spool.adopt():
            _log.info("%d bytes of events that an earlier process left are sent first", self._spool.backlog_bytes)
            self._start()

    @property
    def counts(self) -> Counts:
        """What became of the samples so far."""
        return self._outbox.snapshot()

    def emit(self, sample: Any = None, *, step: int | None = None, scope: str | None = None, **fields: Any) -> bool:
        """Queues one sample; returns False where it was dropped.

        Args:
            sample: A mapping or an object; None takes the fields alone.
            step: The step; None takes the sample's own.
            scope: Prefix of the metrics' keys; None takes the producer's.
            **fields: Fields over those of a mapping.

        Raises:
            EmitError: It was dropped, and `raise_errors` is on.
        """
        if sample is None:
            sample = fields
        elif fields:
            if not isinstance(sample, Mapping):
                return self._refuse(None, 1, "sample", "fields beside an object: give one or the other") > 0
            sample = {**sample, **fields}
        return self._emit((sample,), step, scope, is_whole_step=False) == 1

    def emit_step(self, samples: Iterable[Any], *, step: int | None = None, scope: str | None = None) -> int:
        """Queues many samples of one step; returns how many were taken.

        May be called with parts of a step. Called once more for a step that is closed, it is taken for the same samples
        again: they get the same ids, and change nothing.

        Args:
            samples: Mappings or objects, in an order that is the same if the call is repeated.
            step: The step; None takes the first sample's own.
            scope: Prefix of the metrics' keys; None takes the producer's.

        Raises:
            EmitError: One was dropped, and `raise_errors` is on; where one can't be encoded, none was queued.
        """
        return self._emit(samples, step, scope, is_whole_step=True)

    def close_step(
        self,
        step: int,
        *,
        scope: str | None = None,
        expected_samples: int | None = None,
        dropped: Mapping[str, int] | None = None,
        producers: int | None = None,
    ) -> bool:
        """Queues the step's close marker, which leaves once the step's samples are acknowledged; returns False where
        it can't.

        Args:
            step: The step.
            scope: Prefix of the metrics' keys; None takes the producer's.
            expected_samples: How many samples the step has from this producer; None takes what was emitted, the dropped
                included, so that a step that lacks some is published as incomplete.
            dropped: What the trainer filtered or aborted before emitting: reason to count.
            producers: How many producers close this step; None takes the producer's.

        Raises:
            EmitError: The marker can't be made, and `raise_errors` is on.
        """
        try:
            if self._is_closed:
                return self._refuse(None, 0, "close_step", "the producer is closed", "closed") > 0
            number = step_number(step)
            expected = None if expected_samples is None else step_number(expected_samples, "expected_samples")
            count = self.producers if producers is None else max(1, step_number(producers, "producers"))
            filtered = {str(reason): step_number(n, f"dropped.{reason}") for reason, n in (dropped or {}).items()}
            name = self._scope(scope)
        except UnencodableSampleError as error:
            return self._refuse(None, 0, error.field, error.why) > 0
        except EmitError:
            raise
        except Exception as error:
            return self._refuse(None, 0, "close_step", repr(error)) > 0

        def make(window: Window) -> events.StepClose:
            lost = window.dropped.copy()
            lost.update(filtered)
            return events.StepClose(
                step=number,
                run_id=self.run_id,
                scope=name,
                attempt=self.attempt,
                producer=self.producer,
                producers=count,
                expected_samples=window.samples if expected is None else expected,
                dropped=dict(lost) or None,
            )

        self._outbox.put_marker(self._outbox.window(name, number), make)
        return self._start()

    def step(self, step: int, *, scope: str | None = None) -> StepEmitter:
        """Returns a context that closes the step when it ends well, and leaves it open when it ends with an
        exception.
        """
        return StepEmitter(self, step, scope)

    def flush(self, timeout_seconds: float) -> bool:
        """Waits until all is acknowledged, the spool included; returns whether it is. The one call without the
        budget.
        """
        deadline = self._clock() + timeout_seconds
        return self._outbox.wait_settled(
            lambda: self._spool is None or self._spool.is_empty, lambda: deadline - self._clock()
        )

    def close(self, timeout_seconds: float | None = None) -> None:
        """Sends the rest within the time, then writes to the spool what is left; closes no step. May be called
        twice.
        """
        self._stop(timeout_seconds)
        self._join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Taking samples

    def _emit(self, samples: Iterable[Any], step: int | None, scope: str | None, *, is_whole_step: bool) -> int:
        size = 0
        try:
            listed = samples if isinstance(samples, Sequence) else list(samples)
            size = len(listed)
            if self._is_closed:
                return self._refuse(None, size, "emit", "the producer is closed", "closed")
            if step is None and listed:
                first = listed[0]
                step = first.get("step") if isinstance(first, Mapping) else getattr(first, "step", None)
            if not listed and step is None:
                return 0
            number = step_number(step)
            return self._take(listed, number, self._scope(scope), is_whole_step)
        except UnencodableSampleError as error:
            return self._refuse(None, size, error.field, error.why)
        except EmitError:
            raise
        except Exception as error:  # whatever a trainer's objects do, it isn't the trainer's to suffer
            return self._refuse(None, size, "sample", repr(error))

    def _take(self, samples: Sequence[Any], step: int, scope: str, is_whole_step: bool) -> int:
        outbox = self._outbox
        window, first, fresh_from = outbox.reserve(scope, step, len(samples), is_repeat_if_closed=is_whole_step)
        payloads = []
        fresh = 0
        refused: UnencodableSampleError | None = None
        for place, sample in enumerate(samples, first):
            try:
                fields = sample_fields(sample, metadata_keys=self._metadata_keys)
                own_id = fields.get("sample_id")
                if own_id is None:
                    # Negative, so that it can't meet an id that came with another sample.
                    fields["sample_id"] = f"{self.producer}#{place}" if self.producer else -1 - place
                fields.setdefault("position", place)
                payload = encode_fields(fields)
            except UnencodableSampleError as error:
                refused = error
                fresh += place >= fresh_from
                continue
            except Exception as error:
                refused = UnencodableSampleError("sample", repr(error))
                fresh += place >= fresh_from
                continue
            fresh += place >= fresh_from if own_id is None else not outbox.is_known_id(window, own_id)
            payloads.append(payload)
        bad = len(samples) - len(payloads)
        if refused is not None and self._raise_errors:
            outbox.give_back(window, first, len(samples))
            raise EmitError(f"{bad} samples of step {step} (scope {scope!r}) can't be encoded: {refused}") from None
        outbox.expect(window, len(samples), fresh)
        if refused is not None:
            self._refuse(window, bad, refused.field, f"{refused.why} (step {step}, scope {scope!r})")
        if not payloads:
            return 0
        if not self._start():
            self._refuse(window, len(payloads), "emit", "the sending thread can't start", "unsent")
            return 0
        taken = outbox.put(window, payloads, self._budget_seconds)
        if taken < len(payloads):
            why = f"no room in the queue within {self._budget_seconds} s (step {step}, scope {scope!r})"
            self._refuse(window, len(payloads) - taken, "queue", why, "queue_full")
        return taken

    def _refuse(self, window: Window | None, samples: int, field: str, why: str, reason: str = "unencodable") -> int:
        """Counts and logs what is dropped, or raises; returns 0, the number taken."""
        if window is None:
            self._outbox.expect(Window("", 0), samples, 0)
        self._outbox.drop(window, reason, samples)
        if self._raise_errors:
            raise EmitError(f"{field}: {why}")
        cause = f"{reason} {field}"
        if cause not in self._said and len(self._said) < 64:
            self._said.add(cause)
            _log.error(
                "run %r: %d dropped as %s: %s: %s (said once; counted)", self.run_id, samples, reason, field, why
            )
        return 0

    def _scope(self, scope: str | None) -> str:
        if scope is None:
            return self.scope
        if not isinstance(scope, str) or len(scope) > 480 or not _is_utf8(scope):
            raise UnencodableSampleError("scope", f"no text of at most 480 characters: {scope!r:.100}")
        return scope

    # The sending thread

    def _set_up(self) -> None:
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._stop_seconds = self._close_seconds
        self._thread: threading.Thread | None = None
        self._outbox = Outbox(max_bytes=self._max_queue_bytes, clock=self._clock)
        self._spool = (
            None
            if self._spool_directory is None
            else Spool(self._spool_directory, topic=self.topic, run_id=self.run_id, max_bytes=self._max_spool_bytes)
        )
        self._courier = Courier(
            self._outbox,
            self._spool,
            self._connect,
            topic=self.topic,
            run_id=self.run_id,
            attempt=self.attempt,
            spool_after_seconds=self._spool_after_seconds,
            clock=self._clock,
        )

    def _start(self) -> bool:
        if self._thread is not None:
            return True
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="stream-metrics-producer", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # the interpreter is on its way out
                    return False
                self._thread = thread
                if self._is_child and (util := sys.modules.get("multiprocessing.util")) is not None:
                    # A child of multiprocessing ends without running what atexit holds, and forgets on its way up what
                    # was to be run instead; so it is said anew, once it is up.
                    util.Finalize(self, _close_if_there, args=(weakref.ref(self),), exitpriority=10)
        return True

    def _run(self) -> None:
        courier = self._courier
        while not self._stopping.is_set():
            self._pump(courier, 0.5)
        deadline = self._clock() + self._stop_seconds
        while not courier.is_idle and self._clock() < deadline:
            self._pump(courier, 0.05)
        try:
            courier.finish()
        except Exception:
            _log.exception("run %r: the rest can't be put away", self.run_id)

    def _pump(self, courier: Courier, wait_seconds: float) -> None:
        try:
            courier.pump(wait_seconds)
        except Exception:
            if "pump" not in self._said:
                self._said.add("pump")
                _log.exception("run %r: sending failed; it goes on", self.run_id)
            self._stopping.wait(0.2)

    def _stop(self, timeout_seconds: float | None = None) -> None:
        self._is_closed = True
        if timeout_seconds is not None:
            self._stop_seconds = timeout_seconds
        self._stopping.set()
        self._outbox.wake()

    def _join(self) -> None:
        thread = self._thread
        if thread is not None:
            # Putting away takes time of its own; a disk that hangs must not keep a trainer from ending.
            thread.join(self._stop_seconds + 5.0)
            if thread.is_alive():
                _log.error(
                    "run %r: the sending thread doesn't end; %d samples may be lost", self.run_id, self.counts.pending
                )
                return
            self._thread = None
        dropped = self.counts.dropped
        if dropped.total() and "summary" not in self._said:
            self._said.add("summary")
            _log.warning("run %r: dropped in all: %s", self.run_id, dict(dropped))

    def _after_fork(self) -> None:
        """In the child: a fresh queue and name. The parent's threads aren't here, and its client must not even be
        freed.
        """
        self._courier.leak()
        if self._spool is not None:
            self._spool.abandon_after_fork()
        self.producer = f"{self.producer.partition('@')[0]}@{os.getpid()}"
        self._said = set()
        self._set_up()
        self._is_child = True


class StepEmitter:
    """One step of one producer: emits into it, and closes it when its `with` block ends without an exception."""

    def __init__(self, producer: RolloutProducer, step: int, scope: str | None) -> None:
        self._producer = producer
        self._step = step
        self._scope = scope

    def emit(self, sample: Any = None, **fields: Any) -> bool:
        """As `RolloutProducer.emit`."""
        return self._producer.emit(sample, step=self._step, scope=self._scope, **fields)

    def emit_step(self, samples: Iterable[Any]) -> int:
        """As `RolloutProducer.emit_step`."""
        return self._producer.emit_step(samples, step=self._step, scope=self._scope)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._producer.close_step(self._step, scope=self._scope)


def start_time_attempt() -> int:
    """Returns an attempt for a hook that lives in the only producing process: its start in Unix milliseconds.

    Better there than a restart counter: it also grows when a job is submitted anew, where counters begin again at 0.
    """
    return time.time_ns() // 1_000_000


def _attempt(given: int | None) -> int:
    if given is not None:
        try:
            return step_number(given, "attempt")
        except UnencodableSampleError as error:
            raise ValueError(str(error)) from None
    for variable in ATTEMPT_VARIABLES:
        text = os.environ.get(variable, "").strip()
        if not text:
            continue
        if text.isascii() and text.isdigit() and int(text) <= events.MAX_INTEGER:
            return int(text)
        _log.warning("%s=%r is no attempt (an integer from 0 to 2^53 - 1); it is ignored", variable, text)
    return 0


def _spool_directory(given: str | os.PathLike[str] | None) -> Path | None:
    text = os.fspath(given) if given is not None else os.environ.get(SPOOL_VARIABLE)
    if text is None:
        user = os.getuid() if hasattr(os, "getuid") else "user"
        return Path(tempfile.gettempdir()) / f"stream-metrics-spool-{user}"
    return Path(text) if text else None


def _is_utf8(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _connector(bootstrap_servers: str, overrides: Mapping[str, Any]) -> Connect:
    config: dict[str, Any] = {
        "bootstrap.servers": bootstrap_servers,
        "client.id": "stream-metrics-producer",
        "enable.idempotence": True,
        "compression.type": "lz4",
        # As Java's clients do it, so that producers of other languages put the run on the same partition.
        "partitioner": "murmur2_random",
        "linger.ms": 5,
        # Never: what can't be delivered is taken back and put on disk by us, at a time of ours.
        "message.timeout.ms": 0,
        "reconnect.backoff.max.ms": 2000,
        # What it would log on a trainer's stderr is what it tells the error callback too.
        "log_level": 2,
        **overrides,
    }

    def connect(on_error: Callable[[KafkaError], None]) -> KafkaClient:
        return Producer({**config, "error_cb": on_error})

    return connect


def _close_if_there(reference: weakref.ref[RolloutProducer]) -> None:
    producer = reference()
    if producer is not None:
        producer.close()


def _close_all() -> None:
    producers = list(_producers)
    for producer in producers:
        producer._stop()
    for producer in producers:
        with contextlib.suppress(Exception):
            producer._join()


def _after_fork_in_child() -> None:
    for producer in list(_producers):
        producer._after_fork()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)

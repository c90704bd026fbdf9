"""Results as TensorBoard event files, one folder for each run and scope.

TensorBoard's two readers don't agree on a step that comes twice: one draws both points, the other drops all steps after
it. They agree on what a restarted trainer writes: a START event at a step makes both forget that step and those after
it. So a step that isn't above the last one (a correction, out of order, or again after a crash) is written behind such
an event, together with all later steps that are known.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO, Final
from urllib.parse import quote

from stream_metrics.sinks.base import Delivery, Sink, SinkRefusedError, library

MAX_STEPS: Final = 4096
"""Newest steps kept of each run and scope, to be written again after a correction; an older one can't be corrected."""

_MAX_OPEN_FILES: Final = 64
_MAX_NAME: Final = 200

_log = logging.getLogger(__name__)


class TensorboardSink(Sink):
    """Writes event files.

    Args:
        directory: The log directory that TensorBoard is given.
    """

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory)
        self._series: dict[tuple[str, str], _Series] = {}  # those written last come last
        self._events: Any = None
        self._record_writer: Any = None

    def setup(self) -> None:
        self._events = library("tensorboard.compat.proto.event_pb2", "tensorboard")
        self._record_writer = library("tensorboard.summary.writer.record_writer", "tensorboard").RecordWriter
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SinkRefusedError(f"{str(self._directory)!r} can't be made: {error.strerror}") from None

    def recall(self, delivery: Delivery) -> None:
        self._series_of(delivery).learn(delivery)

    def write(self, batch: Sequence[Delivery]) -> None:
        lowest: dict[tuple[str, str], int] = {}
        for delivery in batch:
            result = delivery.result
            key = (result.run_id, result.scope)
            if self._series_of(delivery).learn(delivery):
                lowest[key] = min(result.step, lowest.get(key, result.step))
        for key, step in lowest.items():
            series = self._series[key] = self._series.pop(key)
            try:
                self._write_from(series, step)
            except OSError:
                series.close()  # what follows half a record is unreadable: the next try begins a new file
                raise
        open_series = [series for series in self._series.values() if series.file is not None]
        for series in open_series[:-_MAX_OPEN_FILES]:
            series.flush()
            series.close()

    def flush(self) -> None:
        for series in self._series.values():
            series.flush()

    def close(self) -> None:
        for series in self._series.values():
            series.close()

    def _series_of(self, delivery: Delivery) -> _Series:
        key = (delivery.result.run_id, delivery.result.scope)
        if key not in self._series:
            self._series[key] = _Series(self._directory / _name(key[0]) / _name(key[1]))
        return self._series[key]

    def _write_from(self, series: _Series, step: int) -> None:
        """The step and all later ones that are known are in the file, and nothing else from that step on."""
        event = self._events.Event
        is_new = series.file is None
        if series.file is None:
            series.open()
            assert series.file is not None
        writer = self._record_writer(series.file)
        if is_new:
            writer.write(event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString())
        if is_new or step <= series.last_written:
            start = event(wall_time=time.time(), step=step)
            start.session_log.status = self._events.SessionLog.START
            writer.write(start.SerializeToString())
        for later in sorted(known for known in series.steps if known >= step):
            delivery = series.steps[later]
            unix_ms = delivery.result.closed_unix_ms or delivery.unix_ms
            made = event(wall_time=unix_ms / 1000, step=later)
            for name, number in delivery.result.metrics.items():
                made.summary.value.add(tag=name, simple_value=number)
            writer.write(made.SerializeToString())
            series.last_written = later
        series.has_unflushed = True


class _Series:
    """The newest steps of one run and scope, and the file that's being written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.steps: dict[int, Delivery] = {}
        self.attempt = 0
        self.file: BinaryIO | None = None
        self.last_written = -1
        self.has_unflushed = False

    def learn(self, delivery: Delivery) -> bool:
        """Notes a result; tells whether it can be shown.

        A newer attempt does again what follows its first step, so the older one's steps from there on are forgotten.
        """
        result = delivery.result
        if result.attempt > self.attempt:
            self.attempt = result.attempt
            self.steps = {step: kept for step, kept in self.steps.items() if step < result.step}
        if len(self.steps) >= MAX_STEPS and result.step not in self.steps:
            oldest = min(self.steps)
            if result.step < oldest:
                fields = {"run_id": result.run_id, "scope": result.scope, "step": result.step, "oldest": oldest}
                _log.warning("too old a step to be corrected in an event file", extra={"fields": fields})
                return False
            del self.steps[oldest]
        self.steps[result.step] = delivery
        return True

    def open(self) -> None:
        """A new file that TensorBoard reads after those that are there."""
        self.folder.mkdir(parents=True, exist_ok=True)
        seconds = int(time.time())
        for name in os.listdir(self.folder):
            there = name.removeprefix("events.out.tfevents.").partition(".")[0]
            if there.isdecimal():
                seconds = max(seconds, int(there) + 1)
        name = f"events.out.tfevents.{seconds:010d}.{socket.gethostname()}.{os.getpid()}.stream_metrics"
        self.file = (self.folder / name).open("xb")

    def flush(self) -> None:
        if self.file is not None and self.has_unflushed:
            self.file.flush()
            os.fsync(self.file.fileno())
            self.has_unflushed = False

    def close(self) -> None:
        file, self.file = self.file, None
        if file is not None:
            try:
                file.close()
            except OSError as error:  # what was in its buffer comes again
                _log.debug("an event file couldn't be closed: %s", error)


def _name(text: str) -> str:
    """Returns a folder's name that no other text has, and that stays where it is put."""
    made = quote(text, safe="")
    if made.strip(".") == "":
        made = made.replace(".", "%2E") or "%"
    if len(made) > _MAX_NAME:
        made = f"{made[: _MAX_NAME - 40]}~{blake2b(text.encode(), digest_size=16).hexdigest()}"
    return made

"""`stream-metrics replay`: a log of JSON lines through the same fold as the sidecar's, with no broker.

A result an output line, on standard output. A step's last correction comes when the step is forgotten or the input
ends.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import BinaryIO, Final

import msgspec

from stream_metrics.config import Settings
from stream_metrics.core.effects import Effect, Notice, Publish
from stream_metrics.core.fold import Fold
from stream_metrics.core.record import LogRecord
from stream_metrics.events import encode
from stream_metrics.exit_codes import ExitCode
from stream_metrics.log_lines import read_line
from stream_metrics.sidecar import logs

_BATCH: Final = 1_000


class _Line(msgspec.Struct, gc=False):
    number: int
    text: bytes
    record: LogRecord


class _DisorderError(Exception):
    pass


def main(settings: Settings, path: str, dead_letters: str | None = None) -> int:
    """Folds a log and prints its results.

    Args:
        settings: Those of `run` that change results, or how they are come by.
        path: The log, or `-` for standard input.
        dead_letters: Where to write the lines set aside, with their number and the reason; None for nowhere.
    """
    logs.setup(settings.log_format, settings.log_level)
    try:
        with ExitStack() as files:
            source = sys.stdin.buffer if path == "-" else files.enter_context(open(path, "rb"))
            rejected = files.enter_context(open(dead_letters, "wb")) if dead_letters is not None else None
            _Replay(settings, rejected).run(source)
            sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise
    except _DisorderError as error:
        logs.error(str(error))
        return ExitCode.INPUT_REFUSED
    except OSError as error:
        logs.error("can't read the log or write the dead letters", file=error.filename, error=error.strerror)
        return ExitCode.WRONG_SETTINGS
    return ExitCode.OK


class _Replay:
    def __init__(self, settings: Settings, rejected: BinaryIO | None) -> None:
        self._settings = settings
        self._rejected = rejected
        self._folds: dict[tuple[str, int], Fold] = {}
        self._next: dict[tuple[str, int], int] = {}
        self._num_rejected = 0

    def run(self, source: BinaryIO) -> None:
        for lines in _rows(source):
            self._feed(lines)
        for fold in self._folds.values():
            self._perform(fold.take_corrections(), {})
        for fold in self._folds.values():
            for window in fold.open_windows():
                logs.warning(
                    "step still open",
                    **logs.named(window),
                    samples=len(window),
                    expected_samples=window.expected_samples,
                    producers_heard=len(window.heard),
                    producers=window.producers,
                )
        if self._num_rejected and self._rejected is None:
            logs.warning("lines were set aside; see them with --dead-letters FILE", lines=self._num_rejected)

    def _feed(self, lines: list[_Line]) -> None:
        first = lines[0].record
        key = (first.topic() or self._settings.input_topic, first.partition())
        fold = self._folds.get(key)
        if fold is None:
            fold = self._folds[key] = Fold(self._settings.fold(), *key, is_compiled=not self._settings.pure_python)
        next_offset = self._next.get(key, 0)
        for line in lines:
            if line.record.offset() < next_offset:
                raise _DisorderError(
                    f"line {line.number}: offset {line.record.offset()} of {key[0]}[{key[1]}] comes after "
                    f"{next_offset - 1}; a log is replayed in the order of its offsets"
                )
            next_offset = line.record.offset() + 1
        self._next[key] = next_offset
        fold.feed([line.record for line in lines])
        self._perform(fold.take_effects(), {line.record.offset(): line for line in lines})

    def _perform(self, effects: list[Effect], lines: dict[int, _Line]) -> None:
        for effect in effects:
            if isinstance(effect, Publish):
                sys.stdout.buffer.write(encode(effect.result) + b"\n")
            elif isinstance(effect, Notice):
                logs.warning(effect.message, event=effect.kind, run_id=effect.run_id, step=effect.step)
            else:
                self._num_rejected += 1
                if self._rejected is not None:
                    line = lines[effect.record.offset()]
                    told = {
                        "line": line.number,
                        "reason": effect.reason,
                        "error": effect.error,
                        "message": effect.message,
                        "text": line.text.rstrip(b"\r\n").decode("utf-8", "backslashreplace"),
                    }
                    self._rejected.write(msgspec.json.encode(told) + b"\n")


def _rows(source: BinaryIO) -> Iterator[list[_Line]]:
    """Yields lines in a row that are of one partition."""
    row: list[_Line] = []
    for number, text in enumerate(source, 1):
        if not text.strip():
            continue
        record = read_line(text, number)
        if row:
            last = row[-1].record
            if len(row) == _BATCH or record.partition() != last.partition() or record.topic() != last.topic():
                yield row
                row = []
        row.append(_Line(number, text, record))
    if row:
        yield row

"""Results as JSON lines at the end of a file, as they are in the topic; the last line of a step counts.

The file itself says what it has: a line that is in it already isn't written again, and half a line that a crash left is
cut off. So it's exactly once, whatever comes twice. One process may write to a file.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Sequence

from stream_metrics.sinks.base import Delivery, Sink, SinkRefusedError


class JsonlSink(Sink):
    """Appends to a file.

    Args:
        path: The file.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._file = -1
        self._length = 0
        self._lines: set[bytes] = set()

    def setup(self) -> None:
        try:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise SinkRefusedError(f"{self._path!r} can't be written: {error.strerror}") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SinkRefusedError(f"{self._path!r} is being written by another process") from None
        with open(self._file, "rb", closefd=False) as reader:
            for line in reader:
                if line.endswith(b"\n"):
                    self._length += len(line)
                    self._lines.add(_digest(line))

    def write(self, batch: Sequence[Delivery]) -> None:
        os.ftruncate(self._file, self._length)  # half a line, of a crash or of a disk that was full
        lines = {_digest(line): line for line in map(_line, batch)}
        text = b"".join(line for digest, line in lines.items() if digest not in self._lines)
        written = 0
        while written < len(text):
            written += os.pwrite(self._file, text[written:], self._length + written)
        self._length += len(text)
        self._lines |= lines.keys()

    def flush(self) -> None:
        os.fsync(self._file)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _line(delivery: Delivery) -> bytes:
    # JSON has no line breaks within texts, so one between them may become a space.
    return delivery.value.replace(b"\r", b" ").replace(b"\n", b" ") + b"\n"


def _digest(line: bytes) -> bytes:
    return hashlib.blake2b(line, digest_size=16).digest()

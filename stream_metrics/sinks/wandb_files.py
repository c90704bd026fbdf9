"""What W&B's library keeps on disk of a run: `run-<id>.wandb`, a log of records in blocks, as LevelDB writes its own.

Read to know what an offline run holds: the library has no call that says so. A file that is being written, or was when
its writer died, ends in half a record; what comes before it counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple
from zlib import crc32

_HEADER: Final = 7  # of the file: the letters, a magic number, a version; of a record: sum, length, kind
_LETTERS: Final = b":W&B"
_BLOCK: Final = 32_768
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


class Row(NamedTuple):
    """A row of a run's history: what one `log` gave, by key."""

    step: int
    values: dict[str, Any]


class RunFile:
    """Reads one file; each call of `rows` goes on where the last one ended.

    Args:
        path: The file.
        record: The library's class of a record, `wandb.proto.wandb_internal_pb2.Record`.
    """

    def __init__(self, path: Path, record: Any) -> None:
        self._path = path
        self._record = record
        self._next = 0  # where the next record begins

    def rows(self) -> Iterator[Row]:
        """Yields the rows that came since the last call, those being written left out."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._next - self._next % _BLOCK)
                text = file.read()
        except FileNotFoundError:
            return
        base = self._next - self._next % _BLOCK
        place = self._next - base
        if self._next == 0:
            if not text.startswith(_LETTERS) or len(text) < _HEADER:
                return
            place = _HEADER
        for made, end in _records(text, place):
            self._next = base + end
            history = self._record.FromString(made).history
            if history.item:
                yield _row(history)


def _row(history: Any) -> Row:
    values = {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in history.item}
    return Row(int(values.get("_step", history.step.num)), values)


def records(text: bytes) -> Iterator[bytes]:
    """Yields each whole record of a file."""
    return (made for made, _ in _records(text, _HEADER))


def _records(text: bytes, place: int) -> Iterator[tuple[bytes, int]]:
    """Yields each whole record and where the next one begins."""
    parts = b""
    while True:
        if _BLOCK - place % _BLOCK < _HEADER:  # too little for a record, so it's filled up
            place += _BLOCK - place % _BLOCK
        head = text[place : place + _HEADER]
        if len(head) < _HEADER:
            return
        length, kind = int.from_bytes(head[4:6], "little"), head[6]
        part = text[place + _HEADER : place + _HEADER + length]
        if kind not in (_FULL, _FIRST, _MIDDLE, _LAST) or len(part) < length:
            return
        if crc32(part, crc32(head[6:7])) != int.from_bytes(head[:4], "little"):
            return
        parts = part if kind in (_FULL, _FIRST) else parts + part
        place += _HEADER + length
        if kind in (_FULL, _LAST):
            yield parts, place

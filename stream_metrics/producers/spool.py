"""Events that can't be sent now, kept in files until they can be.

The rules:
- One event per line, plain event JSON: the same lines that `stream-metrics produce` takes.
- First in, first out, in segments of about a mebibyte. A segment is deleted once all of it is acknowledged, so a crash
  sends at most the segments in work twice, which the samples' `sample_id` makes harmless.
- All files of a topic and run share a label. Each living process holds a lock on its own; a later process of the same
  run takes over the files whose lock nobody holds.
- Nothing here raises on a bad disk: `append` says how much it took, `trouble` says what was wrong.
- Used by one thread. Nothing is created on disk before there is something to keep.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

_flock: Callable[[int], None] | None
try:
    import fcntl

    def _flock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
except ImportError:  # no such locks on this system: files of other processes are then left to `stream-metrics produce`
    _flock = None

SEGMENT_BYTES: Final = 2**20


class Segment(NamedTuple):
    """A file of events, oldest first."""

    path: Path
    size_bytes: int


class Spool:
    """A size-capped queue of lines on disk for one topic and run."""

    def __init__(
        self, directory: Path, *, topic: str, run_id: str, max_bytes: int, segment_bytes: int = SEGMENT_BYTES
    ) -> None:
        """Describes the spool; touches nothing.

        Args:
            directory: Where the files go; made when first needed, for this user alone.
            topic: The topic that the events are for; it is not in the events, so it is in the files' names.
            run_id: The run that the events are of.
            max_bytes: Bound of all files of this topic and run that this process owns, the taken over ones included.
            segment_bytes: Size from which a new file is begun.
        """
        self.directory = directory
        self.trouble: str | None = None
        self.backlog_bytes = 0
        self._label = _label(topic, run_id)
        self._owner = uuid.uuid4().hex[:12]
        self._max_bytes = max_bytes
        self._segment_bytes = segment_bytes
        self._segments: deque[Segment] = deque()
        self._number = 0
        self._writing: int | None = None
        self._writing_path: Path | None = None
        self._written_bytes = 0
        self._locks: dict[Path, int] = {}

    @property
    def is_empty(self) -> bool:
        """True when no event waits on disk, as far as this process knows."""
        return self.backlog_bytes == 0

    def append(self, lines: Sequence[bytes]) -> int:
        """Returns how many of the lines, from the first, are on disk now; fewer than all when `trouble` says why."""
        taken = 0
        try:
            for line in lines:
                if self.backlog_bytes + len(line) + 1 > self._max_bytes:
                    self.trouble = f"the spool in {self.directory} is full ({self._max_bytes} bytes)"
                    return taken
                self._write(line + b"\n")
                taken += 1
        except OSError as error:
            self.trouble = f"the spool in {self.directory} can't be written: {error}"
            return taken
        self.trouble = None
        return taken

    def oldest(self) -> Segment | None:
        """Returns the oldest segment, which stays until `done`; events appended from now on go to a later one."""
        if not self._segments:
            self._rotate()
        return self._segments[0] if self._segments else None

    def done(self, segment: Segment) -> None:
        """Forgets the oldest segment and deletes its file: every event in it is dealt with."""
        if self._segments and self._segments[0] is segment:
            self._segments.popleft()
            self.backlog_bytes -= segment.size_bytes
        self._unlink(segment.path)
        owner = segment.path.name.rsplit(".", 2)[0]
        if not any(other.path.name.rsplit(".", 2)[0] == owner for other in self._segments):
            self._release(self.directory / f"{owner}.lock", keep=self._writing is not None)

    def adopt(self) -> int:
        """Takes over what processes of this topic and run that are no more have left; returns the number of bytes."""
        if _flock is None:
            return 0
        found = 0
        try:
            owners = sorted(
                {path.name.rsplit(".", 2)[0] for path in self.directory.glob(f"{self._label}.*.jsonl")},
                key=lambda owner: self._age(owner),
            )
            for owner in owners:
                if owner == f"{self._label}.{self._owner}" or not self._lock(self.directory / f"{owner}.lock"):
                    continue
                for path in sorted(self.directory.glob(f"{owner}.*.jsonl")):
                    size = path.stat().st_size
                    self._segments.append(Segment(path, size))
                    self.backlog_bytes += size
                    found += size
        except OSError as error:
            self.trouble = f"the spool in {self.directory} can't be read: {error}"
        return found

    def reject(self, line: bytes) -> bool:
        """Sets aside an event that the broker will never take; it isn't sent again by itself. False where the disk
        refuses.
        """
        try:
            self._make_directory()
            descriptor = os.open(
                self.directory / f"{self._label}.{self._owner}.rejected", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600
            )
            try:
                if os.fstat(descriptor).st_size + len(line) > self._max_bytes:
                    return False
                os.write(descriptor, line + b"\n")
            finally:
                os.close(descriptor)
        except OSError as error:
            self.trouble = f"the spool in {self.directory} can't be written: {error}"
            return False
        return True

    def close(self) -> None:
        """Lets go of all files; what is in them waits for a later process."""
        self._rotate()
        for lock in list(self._locks):
            self._release(lock)

    def abandon_after_fork(self) -> None:
        """Closes, in a forked child, the inherited files without touching the parent's locks or data."""
        for descriptor in (*self._locks.values(), self._writing):
            if descriptor is not None:
                with contextlib.suppress(OSError):
                    os.close(descriptor)
        self._locks.clear()
        self._writing = None

    def _write(self, data: bytes) -> None:
        if self._writing is not None and self._written_bytes + len(data) > self._segment_bytes:
            self._rotate()
        if self._writing is None:
            self._make_directory()
            self._lock(self.directory / f"{self._label}.{self._owner}.lock")
            self._number += 1
            self._writing_path = self.directory / f"{self._label}.{self._owner}.{self._number:08d}.jsonl"
            self._writing = os.open(self._writing_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            self._written_bytes = 0
        done = 0
        try:
            while done < len(data):
                done += os.write(self._writing, data[done:])
        except OSError:
            # Half a line must not stand before the next one.
            os.ftruncate(self._writing, self._written_bytes)
            os.lseek(self._writing, self._written_bytes, os.SEEK_SET)
            raise
        self._written_bytes += len(data)
        self.backlog_bytes += len(data)

    def _rotate(self) -> None:
        if self._writing is None or self._writing_path is None:
            return
        os.close(self._writing)
        self._writing = None
        if self._written_bytes:
            self._segments.append(Segment(self._writing_path, self._written_bytes))
        else:
            self._unlink(self._writing_path)

    def _make_directory(self) -> None:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def _lock(self, path: Path) -> bool:
        if path in self._locks:
            return True
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        if _flock is not None:
            try:
                _flock(descriptor)
            except OSError:
                os.close(descriptor)
                return False
        self._locks[path] = descriptor
        return True

    def _release(self, path: Path, *, keep: bool = False) -> None:
        if keep and path.name == f"{self._label}.{self._owner}.lock":
            return
        descriptor = self._locks.pop(path, None)
        if descriptor is None:
            return
        owner = path.name.removesuffix(".lock")
        if not any(self.directory.glob(f"{owner}.*.jsonl")):
            self._unlink(path)
        os.close(descriptor)

    def _age(self, owner: str) -> float:
        return min(
            (path.stat().st_mtime for path in self.directory.glob(f"{owner}.*.jsonl")),
            default=0.0,
        )

    @staticmethod
    def _unlink(path: Path) -> None:
        with contextlib.suppress(OSError):  # what can't be deleted is sent again by a later process, which is harmless
            path.unlink(missing_ok=True)


def read_lines(path: Path) -> Iterator[bytes]:
    """Yields the events of a spooled file; empty lines are skipped."""
    for line in path.read_bytes().split(b"\n"):
        if line:
            yield line


def _label(topic: str, run_id: str) -> str:
    readable = re.sub(r"[^A-Za-z0-9_-]+", "_", f"{topic}-{run_id}")[:64]
    exact = "\0".join((topic, run_id)).encode("utf-8", "replace")
    return f"{readable}-{hashlib.blake2b(exact, digest_size=4).hexdigest()}"

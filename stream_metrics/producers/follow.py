"""Follows the files of JSON lines that a trainer writes per step, and sends their lines as samples: no code in the
trainer.

The rules:
- A step is closed once its file has rested for a while and ends with a whole line, or a later step has a file that has
  lines.
- A sample's id is its place in its file, so reading a file again changes nothing.
- What is closed and acknowledged is remembered in a small file of ours; steps that aren't are read again after a
  restart.
- A file that changes after its close is the step done again by a restarted trainer: it is sent under a higher attempt,
  all of it where it was written anew, the new lines where it only grew.
- Nothing here sleeps: `look` goes over the files once, whoever calls it waits in between.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

from stream_metrics.producers.client import RolloutProducer
from stream_metrics.producers.follow_state import STATE_NAME, SayOnce, StateFile

MAX_PENDING: Final = 20_000
"""Samples not acknowledged past which reading pauses: the files keep the rest better than memory does."""

_log = logging.getLogger(__name__)


class Unusable(ValueError):  # noqa: N818 - the line is at fault, not the program
    """A line has no sample; the reason is counted in the close marker."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Layout(Protocol):
    """Where a trainer keeps which steps, and what a line of it says."""

    def files(self, directory: Path) -> Iterator[tuple[str | None, int, Path]]:
        """Yields scope (None is the producer's), step and path of each step's file that is there."""
        ...

    def samples(self, line: Any, number: int) -> Iterable[dict[str, Any]]:
        """Returns the samples of a line, the `number`th of its file; raises Unusable."""
        ...


class VerlLayout:
    """`trainer.rollout_data_dir` of verl: a file a step, `<step>.jsonl`, a line a sample.

    Written against `_dump_generations` of `verl/trainer/ppo/ray_trainer.py`, and its successor's `uid` of the form
    `<prompt>_<session>_<index>`. Without a uid, samples of equal input are one group.
    """

    _NOT_VALUES: Final = frozenset({"input", "output", "gts", "score", "step", "uid", "data_source", "reward"})

    def files(self, directory: Path) -> Iterator[tuple[str | None, int, Path]]:
        for path in directory.glob("*.jsonl"):
            if path.stem.isascii() and path.stem.isdigit():
                yield None, int(path.stem), path

    def samples(self, line: Any, number: int) -> Iterable[dict[str, Any]]:
        if not isinstance(line, dict):
            raise Unusable("unreadable")
        uid = line.get("uid")
        made: dict[str, Any] = {
            "sample_id": number,
            "position": number,
            "index": number,
            "reward": line.get("score", line.get("reward")),
            "data_source": line.get("data_source"),
            "values": {name: value for name, value in line.items() if self._is_value(name, value)},
        }
        if isinstance(uid, str) and (parts := re.fullmatch(r"(.+)_(\d+)_(\d+)", uid)):
            made |= {"group_index": parts[1], "rollout_id": f"{parts[1]}_{parts[2]}"}
        elif uid is not None:
            made["group_index"] = str(uid)
        elif "input" in line:
            made["group_index"] = _short(line["input"])
        return [made]

    def _is_value(self, name: str, value: Any) -> bool:
        return name not in self._NOT_VALUES and isinstance(value, int | float)


class PrimeRlLayout:
    """prime-rl's `rollouts/step_<N>/{train,eval}/effective/traces.jsonl`: a line an episode, a sample a trace.

    Written against the file monitor as it was up to v0.9.1.dev28; what it writes now is read by `follow_stream.py`. The
    directory `all` holds what was filtered out too, and is not read. A trace's branches, which the trainer makes
    samples of, are not told apart in the file.
    """

    def files(self, directory: Path) -> Iterator[tuple[str | None, int, Path]]:
        for scope, kind in ((None, "train"), ("eval", "eval")):
            for path in directory.glob(f"step_*/{kind}/effective/traces.jsonl"):
                name = path.parents[2].name.removeprefix("step_")
                if name.isascii() and name.isdigit():
                    yield scope, int(name), path

    def samples(self, line: Any, number: int) -> Iterable[dict[str, Any]]:
        if not isinstance(line, dict):
            raise Unusable("unreadable")
        traces = line.get("traces") if "traces" in line else [line]
        if not traces:
            raise Unusable("failed")
        group = _inner(line, "group", "id")
        environment = _inner(line, "env", "id") or _inner(line, "info", "env_name")
        for place, trace in enumerate(traces):
            if not isinstance(trace, dict):
                raise Unusable("unreadable")
            if _inner(trace, "agent", "trainable") is False:
                continue
            reward, parts = _prime_reward(trace)
            yield {
                "sample_id": f"{number}:{place}",
                "group_index": group,
                "rollout_id": trace.get("id"),
                "index": number,
                "reward": reward,
                "values": parts,
                "status": "completed" if trace.get("ok", line.get("ok", True)) else "failed",
                "data_source": environment,
            }


LAYOUTS: Final[Mapping[str, Callable[[], Layout]]] = {"verl": VerlLayout, "prime-rl-steps": PrimeRlLayout}
"""Layouts of a file a step, by the name that `stream-metrics follow` knows them by."""


@dataclass(slots=True)
class _File:
    """How far a step's file is read."""

    scope: str | None
    step: int
    offset: int = 0
    lines: int = 0
    size: int = -1
    modified_ns: int = 0
    rested_since: float = 0.0
    tail: str = ""
    dropped: dict[str, int] = field(default_factory=dict)
    attempt: int = 0
    is_closed: bool = False
    is_done: bool = False


class Follower:
    """Reads the step files of one directory and emits what they say."""

    def __init__(
        self,
        directory: Path,
        layout: Layout,
        make_producer: Callable[[int], RolloutProducer],
        *,
        attempt: int | None = None,
        scope: str | None = None,
        state: Path | None = None,
        settle_seconds: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
        unix_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """Reads what an earlier follower of the directory has remembered; reads no step yet.

        Args:
            directory: What the trainer writes to; it may not be there yet.
            layout: How it writes.
            make_producer: Makes a producer of an attempt.
            attempt: The attempt to begin with; None goes on with the remembered one, else takes the time.
            scope: Prefix of the metrics' keys where the layout has none; None takes the producer's.
            state: Where to remember; None is a file in the directory.
            settle_seconds: How long a file must rest to be whole.
            clock: Monotonic seconds.
            unix_ms: The time, for attempts.
        """
        self._directory = directory
        self._layout = layout
        self._make_producer = make_producer
        self._scope = scope
        self._say = SayOnce()
        self._state = StateFile(state or directory / STATE_NAME, self._say)
        self._settle_seconds = settle_seconds
        self._clock = clock
        self._unix_ms = unix_ms
        self._files: dict[str, _File] = {}
        self.attempt = 0
        if not self._state.read(self._take_state):
            self._files.clear()
        if attempt is not None:
            self.attempt = attempt
        elif not self.attempt:
            self.attempt = unix_ms()
        self.producer = make_producer(self.attempt)

    def look(self) -> bool:
        """Emits what is new and closes what is whole; returns whether there was anything."""
        is_new = False
        found = sorted(self._layout.files(self._directory), key=lambda one: (one[1], str(one[2])))
        newest: dict[str | None, int] = {}
        for scope, step, path in found:
            newest[scope] = max(step, newest.get(scope, -1)) if _size(path) else newest.get(scope, -1)
        for scope, step, path in found:
            try:
                is_new |= self._look_at(scope, step, path, is_last=step >= newest[scope])
            except OSError as error:
                self._say(f"{path}", "%s can't be read: %s", path, error)
        self._remember()
        return is_new

    def sent(self) -> tuple[int, int]:
        """Returns how many samples and how many close markers were acknowledged, since the last attempt began."""
        counts = self.producer.counts
        return counts.acknowledged, counts.closes_acknowledged

    def close(self, timeout_seconds: float = 30.0) -> bool:
        """Ends the producer once all is acknowledged, and remembers; returns whether it was."""
        is_done = self.producer.flush(timeout_seconds)
        self._remember()
        self.producer.close()
        return is_done

    def _look_at(self, scope: str | None, step: int, path: Path, *, is_last: bool) -> bool:
        name = path.relative_to(self._directory).as_posix()
        entry = self._files.setdefault(name, _File(scope, step))
        status = path.stat()
        if (status.st_size, status.st_mtime_ns) != (entry.size, entry.modified_ns):
            is_anew = not _begins_as_before(entry, path)
            if (entry.is_closed or is_anew) and not self._again(entry, is_anew=is_anew):
                return False
            entry.size, entry.modified_ns = status.st_size, status.st_mtime_ns
            entry.rested_since = self._clock()
        elif entry.is_closed:
            return False
        is_new = self._read(entry, path)
        is_whole = entry.offset == entry.size and entry.size > 0
        has_rested = self._clock() - entry.rested_since >= self._settle_seconds
        if is_whole and not is_new and (has_rested or not is_last):
            self.producer.close_step(step, scope=self._scope_of(entry), dropped=entry.dropped)
            entry.is_closed = True
            is_new = True
        return is_new

    def _read(self, entry: _File, path: Path) -> bool:
        begin = entry.offset
        with path.open("rb") as file:
            file.seek(entry.offset)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                if entry.lines % 256 == 0 and self.producer.counts.pending > MAX_PENDING:
                    break
                entry.offset += len(line)
                if line.strip():
                    self._emit(entry, line, path)
                entry.lines += 1
            is_paused = entry.offset < entry.size and self.producer.counts.pending > 0
            if entry.offset > begin:
                entry.attempt = self.attempt
                entry.tail = _tail(file, entry.offset)
        return entry.offset > begin or is_paused

    def _emit(self, entry: _File, line: bytes, path: Path) -> None:
        try:
            for sample in self._layout.samples(json.loads(line), entry.lines):
                self.producer.emit(sample, step=entry.step, scope=self._scope_of(entry))
        except (ValueError, TypeError, RecursionError) as error:
            reason = error.reason if isinstance(error, Unusable) else "unreadable"
            entry.dropped[reason] = entry.dropped.get(reason, 0) + 1
            self._say(reason, "line %d of %s is left out as %s: %s", entry.lines + 1, path, reason, error)

    def _again(self, entry: _File, *, is_anew: bool) -> bool:
        """Opens a step anew that a restarted trainer does again; False where what was sent before isn't acknowledged
        yet.
        """
        if entry.attempt == self.attempt:
            if not self.producer.flush(0.0):
                return False
            self._remember()
            self.producer.close()
            self.attempt = max(self.attempt + 1, self._unix_ms())
            _log.warning("step %d is done again: it and what follows are attempt %d", entry.step, self.attempt)
            self.producer = self._make_producer(self.attempt)
            for other in self._files.values():
                if not other.is_closed:  # belongs to the higher attempt as a whole
                    other.offset = other.lines = 0
        if is_anew:
            entry.offset = entry.lines = 0
        entry.dropped = {}
        entry.is_closed = entry.is_done = False
        return True

    def _scope_of(self, entry: _File) -> str | None:
        return entry.scope if entry.scope is not None else self._scope

    def _take_state(self, state: Any) -> None:
        for name, (scope, step, attempt, size, modified_ns, lines, tail) in state["closed"].items():
            self._files[name] = _File(scope, step, size, lines, size, modified_ns, tail=tail, attempt=attempt)
            self._files[name].is_closed = self._files[name].is_done = True
        self.attempt = int(state["attempt"])

    def _remember(self) -> None:
        waiting = [entry for entry in self._files.values() if entry.is_closed and not entry.is_done]
        if not waiting or not self.producer.flush(0.0):
            return
        for entry in waiting:
            entry.is_done = True
        closed = {
            name: (entry.scope, entry.step, entry.attempt, entry.size, entry.modified_ns, entry.lines, entry.tail)
            for name, entry in self._files.items()
            if entry.is_done
        }
        self._state.write({"attempt": self.attempt, "closed": closed})


def _prime_reward(trace: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Returns the weighted sum of a trace's rewards, and the scores; no reward where scoring did not run."""
    rewards = trace.get("rewards")
    if not isinstance(rewards, dict):
        return trace.get("reward"), {}
    scores = {name: one for name, one in rewards.items() if isinstance(one, dict) and "score" in one}
    if "reward" in trace:
        total = trace["reward"]
    else:
        total = sum(one["score"] * one.get("weight", 1.0) for one in scores.values()) if scores else None
    return total, {f"rewards/{name}": one["score"] for name, one in scores.items()}


def _inner(record: Mapping[str, Any], name: str, inner: str) -> Any:
    value = record.get(name)
    return value.get(inner) if isinstance(value, dict) else None


def _tail(file: BinaryIO, offset: int) -> str:
    """Returns a name of the last kilobyte before the offset."""
    file.seek(max(0, offset - 1024))
    return hashlib.blake2b(file.read(min(offset, 1024)), digest_size=8).hexdigest()


def _begins_as_before(entry: _File, path: Path) -> bool:
    """Returns whether what was read of the file is still there, so that it has only grown."""
    if entry.offset == 0:
        return True
    with path.open("rb") as file:
        return _tail(file, entry.offset) == entry.tail


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()

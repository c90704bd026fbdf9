"""Follows the stream of episodes that prime-rl's file monitor writes, and sends them under the steps they trained.

Two indexes that only grow are read, and nothing of the chunks, which are compressed as they fill:
- `stream.index.jsonl`: a line an episode, as it arrives, with its reward, before anybody knows its step;
- `annotations/orchestrator.index.jsonl`: a line a trace, once it is in the batch of a step.

The rules:
- A batch has a step and a time. It is whole once a later one of its scope has begun, or it has rested for a while.
- A batch of a step that isn't beyond its scope's last one is that step done again by a restarted trainer: it and what
  follows of that scope are a higher attempt.
- How far all is closed and acknowledged is remembered in a small file of ours; the rest is read again after a restart,
  under the same ids.
- Nothing here sleeps: `look` reads once what is new, whoever calls it waits in between.

Written against `prime_rl/monitors/file` of prime-rl at commit 048a6e2 and what stamps its annotations.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from stream_metrics.producers.client import RolloutProducer
from stream_metrics.producers.follow import MAX_PENDING
from stream_metrics.producers.follow_state import STATE_NAME, SayOnce, StateFile

EPISODES: Final = "stream.index.jsonl"
BATCHES: Final = Path("annotations", "orchestrator.index.jsonl")
MAX_WAITING: Final = 500_000
"""Episodes that came and are in no batch yet; most that are older were filtered out and never will be."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Scope:
    """The batch of a scope that was read last."""

    attempt: int
    step: int = -1
    batch_time: Any = None
    rested_since: float = 0.0
    is_open: bool = False


class StreamFollower:
    """Reads the two indexes and emits what they say."""

    def __init__(
        self,
        directory: Path,
        make_producer: Callable[[int], RolloutProducer],
        *,
        attempt: int | None = None,
        scope: str | None = None,
        state: Path | None = None,
        settle_seconds: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
        unix_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """Reads what an earlier follower of the directory has remembered; reads no episode yet.

        Args:
            directory: `monitors/file/traces` of the run's output; it may not be there yet.
            make_producer: Makes a producer of an attempt.
            attempt: The attempt to begin with; None goes on with the remembered ones, else takes the time.
            scope: Prefix of the metrics' keys of what is trained on; None takes the producer's.
            state: Where to remember; None is a file in the directory.
            settle_seconds: How long a batch must rest to be whole.
            clock: Monotonic seconds.
            unix_ms: The time, for attempts.
        """
        self._directory = directory
        self._make_producer = make_producer
        self._scope = scope
        self._say = SayOnce()
        self._state = StateFile(state or directory / STATE_NAME, self._say)
        self._settle_seconds = settle_seconds
        self._clock = clock
        self._unix_ms = unix_ms
        self._episodes: dict[str, dict[str, Any]] = {}
        self._traces: dict[str, str] = {}  # to the episode
        self._siblings: set[str] = set()
        self._episodes_read = self._batches_read = 0
        self._scopes: dict[str, _Scope] = {}
        self._producers: dict[str, RolloutProducer] = {}
        self._sent = [0, 0]
        self._remembered = 0
        if not self._state.read(self._take_state):
            self._scopes.clear()
        if attempt is not None:
            for known in self._scopes.values():
                known.attempt = attempt
        self._first_attempt = attempt if attempt is not None else unix_ms()

    def look(self) -> bool:
        """Emits what is new and closes what is whole; returns whether there was anything."""
        # The batches first: what they name has been in the other index before.
        end = _size(self._directory / BATCHES)
        if end is None:
            return False
        if end < max(self._batches_read, self._remembered):
            self._begin_anew()
        self._read_episodes()
        is_new = has_read = self._read_batches(end)
        now = self._clock()
        for name, scope in self._scopes.items():
            if has_read:
                scope.rested_since = now
            elif scope.is_open and now - scope.rested_since >= self._settle_seconds:
                self._close_step(name, scope)
                is_new = True
        self._remember()
        return is_new

    def close(self, timeout_seconds: float = 30.0) -> bool:
        """Ends the producers once all is acknowledged, and remembers; returns whether it was."""
        until = self._clock() + timeout_seconds
        is_done = all(one.flush(max(0.0, until - self._clock())) for one in self._producers.values())
        self._remember()
        for name in list(self._producers):
            self._end_producer(name)
        return is_done

    def sent(self) -> tuple[int, int]:
        """Returns how many samples and how many close markers were acknowledged."""
        counts = [one.counts for one in self._producers.values()]
        return (
            self._sent[0] + sum(one.acknowledged for one in counts),
            self._sent[1] + sum(one.closes_acknowledged for one in counts),
        )

    def flush(self, timeout_seconds: float) -> bool:
        """Returns whether all that was emitted is acknowledged, waiting for it at most so long a producer."""
        return all(one.flush(timeout_seconds) for one in self._producers.values())

    # --- reading -------------------------------------------------------------------------------------------------

    def _read_episodes(self) -> None:
        for line, end in self._lines(self._directory / EPISODES, self._episodes_read):
            self._episodes_read = end
            row = self._parsed(line)
            if row is None or not isinstance(row.get("trace_ids"), list) or not isinstance(row.get("id"), str):
                continue
            if row["id"] in self._episodes:
                self._take(row["id"])
            self._episodes[row["id"]] = row
            self._traces.update((str(trace), row["id"]) for trace in row["trace_ids"])
            if len(self._episodes) > MAX_WAITING:
                self._take(next(iter(self._episodes)))

    def _read_batches(self, until: int) -> bool:
        begin = self._batches_read
        for number, (line, end) in enumerate(self._lines(self._directory / BATCHES, begin)):
            if end > until:
                break
            if number % 256 == 0 and self._pending() > MAX_PENDING:
                return True  # the file keeps the rest better than memory does
            row = self._parsed(line)
            if row is not None:
                self._read_update(row, is_done=self._batches_read < self._remembered)
            self._batches_read = end
        return self._batches_read > begin

    def _read_update(self, row: dict[str, Any], *, is_done: bool) -> None:
        info = row.get("info")
        batch = info.get("ship") if isinstance(info, dict) and info.get("effective") else None
        if not isinstance(batch, dict) or type(batch.get("step")) is not int or batch["step"] < 0:
            return  # what is said of a trace beside its batch
        trace_id = str(row.get("trace_id"))
        if trace_id in self._siblings:
            return  # of an episode that is sent, whose traces follow each other
        episode_id = self._traces.get(trace_id)
        if episode_id is None:
            self._say("unknown", "trace %s is in a batch and in no episode", trace_id)
            return
        episode = self._take(episode_id)
        self._siblings = set(map(str, episode["trace_ids"]))
        if is_done:
            return  # closed and acknowledged in an earlier life
        name = self._name(episode)
        scope = self._begin_batch(name, batch["step"], batch.get("time"))
        for sample in _samples(episode):
            self._producers[name].emit(sample, step=scope.step, scope=name or None)

    def _begin_batch(self, name: str, step: int, batch_time: Any) -> _Scope:
        scope = self._scopes.setdefault(name, _Scope(self._first_attempt))
        if name not in self._producers:
            self._producers[name] = self._make_producer(scope.attempt)
        if (step, batch_time) == (scope.step, scope.batch_time):
            scope.is_open = True
            return scope
        if scope.is_open:
            self._close_step(name, scope)
        if step <= scope.step:
            self._end_producer(name)
            scope.attempt = max(scope.attempt + 1, self._unix_ms())
            self._producers[name] = self._make_producer(scope.attempt)
            _log.warning("step %d is done again: it and what follows are attempt %d", step, scope.attempt)
        scope.step, scope.batch_time, scope.is_open = step, batch_time, True
        return scope

    def _close_step(self, name: str, scope: _Scope) -> None:
        self._producers[name].close_step(scope.step, scope=name or None)
        scope.is_open = False

    def _name(self, episode: dict[str, Any]) -> str:
        """Returns the scope; empty for the producer's own."""
        if episode.get("kind") == "eval":
            environment = episode.get("env")
            return f"eval/{environment}" if environment else "eval"
        return self._scope or ""

    def _take(self, episode_id: str) -> dict[str, Any]:
        """Forgets an episode and returns it."""
        episode = self._episodes.pop(episode_id)
        for trace_id in episode["trace_ids"]:
            self._traces.pop(str(trace_id), None)
        return episode

    def _begin_anew(self) -> None:
        _log.warning("%s is shorter than before, so it is another one: all of it is a higher attempt", BATCHES)
        for name in list(self._producers):
            self._end_producer(name)
        self._first_attempt = max([self._unix_ms(), *(one.attempt + 1 for one in self._scopes.values())])
        self._episodes.clear()
        self._traces.clear()
        self._scopes.clear()
        self._episodes_read = self._batches_read = self._remembered = 0

    def _lines(self, path: Path, offset: int) -> Iterator[tuple[bytes, int]]:
        """Yields each whole line from an offset on, and where it ends."""
        try:
            with path.open("rb") as file:
                file.seek(offset)
                for line in file:
                    if not line.endswith(b"\n"):
                        return
                    offset += len(line)
                    yield line, offset
        except FileNotFoundError:
            return
        except OSError as error:
            self._say(str(path), "%s can't be read: %s", path, error)

    def _parsed(self, line: bytes) -> dict[str, Any] | None:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            self._say("unreadable", "a line of an index is left out: %s", error)
            return None
        return row if isinstance(row, dict) else None

    # --- producers and memory ------------------------------------------------------------------------------------

    def _pending(self) -> int:
        return sum(one.counts.pending for one in self._producers.values())

    def _end_producer(self, name: str) -> None:
        producer = self._producers.pop(name, None)
        if producer is not None:
            producer.close()
            self._sent[0] += producer.counts.acknowledged
            self._sent[1] += producer.counts.closes_acknowledged

    def _take_state(self, state: Any) -> None:
        for name, (attempt, step, batch_time) in state["scopes"].items():
            self._scopes[name] = _Scope(attempt, step, batch_time)
        self._remembered = int(state["read"])

    def _remember(self) -> None:
        """Notes how far all is closed and acknowledged, once no batch is open."""
        read = self._batches_read
        if read <= self._remembered or any(one.is_open for one in self._scopes.values()) or not self.flush(0.0):
            return
        scopes = {name: (one.attempt, one.step, one.batch_time) for name, one in self._scopes.items()}
        if self._state.write({"read": read, "scopes": scopes}):
            self._remembered = read


def _samples(episode: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the training samples of an episode, one a branch of its traces; all have the episode's reward."""
    branches = episode.get("branches")
    traces = len(episode["trace_ids"])
    count = branches if type(branches) is int and 0 < branches <= 10_000 else max(1, traces)
    turns, tokens = episode.get("turns"), episode.get("output_tokens")
    made = {
        "group_index": episode.get("group"),
        "rollout_id": episode["id"],
        "reward": episode.get("reward"),
        "status": "truncated" if episode.get("truncated") else "failed" if episode.get("ok") is False else "completed",
        "data_source": episode.get("env"),
        "values": {"turns": turns} if type(turns) is int else {},
    }
    for number in range(count):
        length = {"response_length": tokens} if count == 1 and type(tokens) is int else {}
        yield {**made, **length, "sample_id": f"{episode['id']}:{number}"}


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None

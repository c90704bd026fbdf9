"""What must be published, from the input log alone, and whether it was.

Two witnesses. `stream-metrics replay`, without the compiled part, over a dump of the input topic must give the very
bytes: every on-time result, in order, once; each step's last correction; every dead letter once. And a plain model of
the design, which shares no code with the fold, must agree with the numbers. Where the log passes the bounds of
memory, which the plain model doesn't know, only the first is asked.
"""

from __future__ import annotations

import hashlib
import json
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from stream_metrics.commands import dump
from stream_metrics.config import Settings
from stream_metrics.core.settings import FoldSettings
from stream_metrics.log_lines import read_lines
from support.naive_windows import tell
from support.sidecar_process import Deployment, flags, plain_environment
from support.topics import Record, read_topic
from support.waiting import wait_until

StepId = tuple[int, str, str, int, int]
"""Input partition, run, scope, attempt and step."""

_FIELDS = ("run_id", "scope", "attempt", "step", "complete", "reason", "late_samples")


@dataclass
class Replayed:
    """What `replay` says of a log.

    Attributes:
        on_time: The lines of each input partition in order.
        corrections: Each step's last.
        dead_letters: How often which (partition, offset, reason).
        num_closing: Steps that wait for samples or producers, and will time out.
    """

    on_time: dict[int, list[bytes]] = field(default_factory=dict)
    corrections: dict[StepId, bytes] = field(default_factory=dict)
    dead_letters: Counter[tuple[int, int, str]] = field(default_factory=Counter)
    num_closing: int = 0


@dataclass
class Published:
    """What a read_committed reader of the output topics sees.

    Attributes:
        on_time: (output partition, value) of each on-time result, by output partition and offset.
        corrections: Each step's last.
        num_corrections: How many there were.
        dead_letters: How often which (partition, offset, reason).
    """

    on_time: list[tuple[int, bytes]] = field(default_factory=list)
    corrections: dict[StepId, bytes] = field(default_factory=dict)
    num_corrections: int = 0
    dead_letters: Counter[tuple[int, int, str]] = field(default_factory=Counter)


def settle(deployed: Deployment, deadline_seconds: float = 120.0) -> Path:
    """Returns a dump of the input topic once a living replica has nothing left to do with it.

    All is committed, and no step is closing, so that no timeout marker is still to come.
    """

    def is_settled() -> Path | None:
        deployed.wait_until_all_is_committed()
        ends = deployed.ends()
        path = dumped(deployed)
        if replayed(deployed, path).num_closing or deployed.ends() != ends:
            return None
        return path

    path = wait_until(is_settled, "nothing is left to do", deadline_seconds)
    assert path is not None
    return path


def assert_exact(deployed: Deployment, log: Path, *, has_bounds: bool = False) -> Published:
    """What is published is what the log says; returns it.

    Args:
        deployed: Its topics and settings.
        log: A dump of the input topic.
        has_bounds: Whether the settings let the log pass the bounds of memory.
    """
    want, got = replayed(deployed, log), published(deployed)
    _assert_published(want, got)
    if not has_bounds:
        given = {name.replace("-", "_"): value for name, value in deployed.fold_settings().items()}
        known = {name: value for name, value in given.items() if name in FoldSettings.__struct_fields__}
        _assert_as_told(log, FoldSettings(**known), want)
    return got


def dumped(deployed: Deployment) -> Path:
    """Returns a file with all that a read_committed reader sees of the input topic."""
    path = deployed.folder / "input.jsonl"
    code = dump.main(Settings(bootstrap_servers=deployed.bootstrap, input_topic=deployed.input_topic), str(path), None)
    assert code == 0
    return path


def replayed(deployed: Deployment, log: Path) -> Replayed:
    """Returns what `stream-metrics replay` makes of a dump, which it is asked once."""
    settings = tuple(flags(deployed.fold_settings()))
    digest = hashlib.sha256(log.read_bytes()).digest()
    if (digest, settings) not in _replays:
        _replays[digest, settings] = _replay(log, settings)
    return _replays[digest, settings]


_replays: dict[tuple[bytes, tuple[str, ...]], Replayed] = {}


def _replay(log: Path, settings: tuple[str, ...]) -> Replayed:
    letters = log.with_suffix(".letters")
    command = [sys.executable, "-m", "stream_metrics", "replay", str(log), "--dead-letters", str(letters)]
    done = subprocess.run(
        [*command, *settings, "--pure-python", "--log-format", "json"],
        capture_output=True,
        env=plain_environment(),
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-4_000:].decode(errors="replace")
    made = Replayed()
    for line in done.stdout.splitlines():
        result = json.loads(line)
        if result["correction"]:
            made.corrections[_step_of(result)] = line
        else:
            made.on_time.setdefault(result["log"]["partition"], []).append(line)
    places = {number: (record.partition(), record.offset()) for number, record in _records(log)}
    for line in letters.read_bytes().splitlines():
        told = json.loads(line)
        made.dead_letters[(*places[told["line"]], told["reason"])] += 1
    for line in done.stderr.splitlines():
        said = json.loads(line)
        if said["message"] == "step still open" and said["producers_heard"]:
            made.num_closing += 1
    return made


def published(deployed: Deployment) -> Published:
    """Returns what is visible of a deployment's work."""
    made = Published()
    seen: set[StepId] = set()
    for record in sorted(read_topic(deployed.bootstrap, deployed.output_topic), key=_place):
        value = record.value or b""
        result = json.loads(value)
        key = [result["run_id"], result["scope"], result["step"]]
        assert record.key == json.dumps(key, separators=(",", ":"), ensure_ascii=False).encode()
        if result["correction"]:
            assert _step_of(result) in seen, f"a correction before its result: {result}"
            made.corrections[_step_of(result)] = value
            made.num_corrections += 1
        else:
            seen.add(_step_of(result))
            made.on_time.append((record.partition, value))
    for record in read_topic(deployed.bootstrap, deployed.dead_letter_topic):
        headers = dict(record.headers)
        partition, offset, reason = (
            (headers[f"stream_metrics.{name}"] or b"").decode() for name in ("partition", "offset", "reason")
        )
        made.dead_letters[int(partition), int(offset), reason] += 1
    return made


def _assert_published(want: Replayed, got: Published) -> None:
    wanted = [line for lines in want.on_time.values() for line in lines]
    visible = Counter(value for _, value in got.on_time)
    twice = {name: count for name, count in _names(visible.elements()).items() if count > 1}
    twice_wanted = {name: count for name, count in _names(wanted).items() if count > 1}
    # With the bounds of memory a straggler may open a step again; the log then says so too.
    assert twice == twice_wanted, f"published more than once: {twice}; by the log: {twice_wanted}"
    lost = Counter(wanted) - visible
    if lost:
        first = _first(lost)
        instead = [value for value in visible if _step_of(json.loads(value)) == _step_of(json.loads(first))]
        raise AssertionError(f"{len(lost)} on-time results are missing or differ, such as\n{first!r}\nnot {instead}")
    extra = visible - Counter(wanted)
    assert not extra, f"{len(extra)} on-time results that the log doesn't give, such as\n{_first(extra)}"
    homes: dict[str, set[int]] = {}
    for home, value in got.on_time:
        homes.setdefault(json.loads(value)["run_id"], set()).add(home)
    assert all(len(places) == 1 for places in homes.values()), f"a run's results are on several partitions: {homes}"
    for partition, lines in want.on_time.items():
        for home in {home for home, _ in got.on_time}:
            in_order = [line for line in lines if homes[json.loads(line)["run_id"]] == {home}]
            of_it = [value for place, value in got.on_time if place == home and _partition(value) == partition]
            assert of_it == in_order, f"input partition {partition}: results in another order on output {home}"
    assert got.corrections.keys() == want.corrections.keys()
    for step, value in want.corrections.items():
        assert got.corrections[step] == value, f"last correction of {step}"
    missing, extra_letters = want.dead_letters - got.dead_letters, got.dead_letters - want.dead_letters
    assert not missing and not extra_letters, f"dead letters missing: {missing}, too many: {extra_letters}"


def _assert_as_told(log: Path, settings: FoldSettings, want: Replayed) -> None:
    """The plain model gives the same results, corrections and dead letters as the replay."""
    by_partition: dict[int, list[Any]] = {}
    for _, record in _records(log):
        by_partition.setdefault(record.partition(), []).append(record)
    letters: Counter[tuple[int, int, str]] = Counter()
    corrections: dict[StepId, Any] = {}
    for partition, records in by_partition.items():
        told = tell(records, settings)
        lines = want.on_time.get(partition, [])
        assert len(lines) == len(told.on_time)
        for line, plain in zip(lines, told.on_time, strict=True):
            _assert_agrees(json.loads(line), plain)
        for (run, attempt, step), plain in told.corrections.items():
            corrections[(partition, *run, attempt, step)] = plain
        letters.update((partition, offset, reason) for offset, reason in told.dead_letters)
    assert want.corrections.keys() == corrections.keys()
    for step, line in want.corrections.items():
        _assert_agrees(json.loads(line), corrections[step])
    assert want.dead_letters == letters


def _assert_agrees(result: dict[str, Any], plain: dict[str, Any]) -> None:
    got = {name: result[name] for name in _FIELDS}
    got |= {name.removeprefix(f"{result['scope']}/"): value for name, value in result["metrics"].items()}
    for name, value in plain.items():
        if isinstance(value, float):
            assert math.isclose(got[name], value, rel_tol=1e-12, abs_tol=1e-12), f"{name}: {got[name]!r} in {result}"
        else:
            assert got[name] == value, f"{name}: {got[name]!r}, not {value!r}, in {result}"


def settle_exact(deployed: Deployment, ledger: Ledger) -> Published:
    """Waits for the end, and holds what was published, and how it moved with the offsets, against the log."""
    log = settle(deployed)
    ledger.look()
    got = assert_exact(deployed, log)
    ledger.assert_atomic(replayed(deployed, log))
    return got


class Ledger:
    """Looks, while replicas live and die, at whether offsets and results move together.

    Each `look` notes the committed offsets, then all results visible, then the committed offsets again. Afterwards
    `assert_atomic` knows from the log which results lie below which offset: those below the first must have been
    visible, and none at or above the second may have been.
    """

    def __init__(self, deployed: Deployment) -> None:
        self._deployed = deployed
        self._newest = dict.fromkeys(range(deployed.partitions), -1)
        self._visible: Counter[bytes] = Counter()
        self._looks: list[tuple[dict[int, int], Counter[bytes], dict[int, int]]] = []
        self._next: dict[int, int] = {}

    def look(self) -> None:
        """Notes how things stand; waits for open transactions to end, so a replica must be there to end them."""
        before = self._committed(is_stable=False)
        self._read()
        visible = Counter(self._visible)
        self._looks.append((before, visible, self._committed(is_stable=True)))

    def note_offsets(self) -> None:
        """The committed offsets haven't gone back, nor past the end of the log."""
        self._committed(is_stable=False)

    def assert_atomic(self, want: Replayed) -> None:
        """At each look the results visible were those below the committed offsets."""
        close_offsets = [
            (line, partition, json.loads(line)["log"]["close_offset"])
            for partition, lines in want.on_time.items()
            for line in lines
        ]
        assert self._looks
        for number, (before, visible, after) in enumerate(self._looks):
            for line, partition, offset in close_offsets:
                if offset < before[partition]:
                    assert visible[line], f"look {number}: offset {before[partition]} committed without {line!r}"
                if offset >= after[partition]:
                    assert not visible[line], f"look {number}: only {after[partition]} committed, but visible: {line!r}"

    def _committed(self, *, is_stable: bool) -> dict[int, int]:
        committed = self._deployed.committed(is_stable=is_stable)
        for partition, offset in committed.items():
            newest = self._newest[partition]
            assert offset >= newest, f"partition {partition}: the committed offset went back from {newest} to {offset}"
            self._newest[partition] = offset
        ends = self._deployed.ends()
        assert all(offset <= ends[partition] for partition, offset in committed.items()), f"{committed} past {ends}"
        return committed

    def _read(self) -> None:
        """Adds the on-time results that have become visible; those that were written before this call are in."""
        topic, deployed = self._deployed.output_topic, self._deployed
        consumer = Consumer(
            {
                "bootstrap.servers": deployed.bootstrap,
                "group.id": "ledger",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 10,
                "isolation.level": "read_committed",
                "log_level": 0,
            }
        )
        try:
            # get_watermark_offsets of a read_committed client gives the last stable offset: wait for the true end.
            ends = {partition: deployed.end_of(topic, partition) for partition in range(2)}
            waiting = {one: end for one, end in ends.items() if end > self._next.get(one, 0)}
            if not waiting:
                return
            consumer.assign([TopicPartition(topic, one, self._next.get(one, 0)) for one in waiting])

            def is_read() -> bool:
                for message in consumer.consume(500, 0.05):
                    error, partition, offset = message.error(), message.partition(), message.offset()
                    assert partition is not None and offset is not None
                    if error is None:
                        value = message.value() or b""
                        if b'"correction":false' in value:
                            self._visible[value] += 1
                        self._next[partition] = offset + 1
                    elif error.code() == KafkaError._PARTITION_EOF:
                        self._next[partition] = max(self._next.get(partition, 0), offset)
                    else:
                        raise KafkaException(error)
                return all(self._next.get(one, 0) >= end for one, end in waiting.items())

            wait_until(is_read, f"{topic} read to {waiting}")
        finally:
            consumer.close()


def _records(log: Path) -> Iterable[tuple[int, Any]]:
    with log.open("rb") as lines:
        yield from read_lines(lines)


def _step_of(result: dict[str, Any]) -> StepId:
    return result["log"]["partition"], result["run_id"], result["scope"], result["attempt"], result["step"]


def _names(values: Iterable[bytes]) -> Counter[StepId]:
    return Counter(_step_of(json.loads(value)) for value in values)


def _partition(value: bytes) -> int:
    return int(json.loads(value)["log"]["partition"])


def _place(record: Record) -> tuple[int, int]:
    return record.partition, record.offset


def _first(values: Counter[bytes]) -> bytes:
    return next(iter(values))

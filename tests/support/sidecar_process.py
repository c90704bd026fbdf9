"""The real sidecar as a process, killed or frozen where a test wants it to be.

`Deployment` is what replicas share: topics, a group and settings. Run as a script, this file is the command line with
two changes. The process ends or freezes itself at a named point of its work, the n-th time it gets there: only so can a
test hit the milliseconds between two calls of a transaction. And it can have another host name, as in a container.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from stream_metrics.config import DEFINITIONS
from support.topics import create_topic, unique_name, watermarks
from support.waiting import DEADLINE_SECONDS, wait_until

POINTS = (
    "taking_over",
    "restoring",
    "before_begin",
    "before_offsets",
    "after_offsets",
    "after_commit",
)
"""Where a process can be told to end or freeze itself; `after_offsets` is before the commit."""


_PASSING = (KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.COORDINATOR_NOT_AVAILABLE)
"""What a broker says that has just begun to keep offsets."""


@dataclass(frozen=True)
class Stumble:
    """What a process does to itself, at which point, the how-manieth time it gets there."""

    point: str
    count: int = 1
    how: signal.Signals = signal.SIGKILL


class SidecarProcess:
    """One replica: `python -m stream_metrics run`, its log lines in a file.

    Attributes:
        name: How the test calls it.
        settings: Its settings by flag name.
    """

    def __init__(
        self,
        name: str,
        settings: dict[str, Any],
        log_path: Path,
        stumble: Stumble | None = None,
        host: str | None = None,
    ) -> None:
        self.name = name
        self.settings = settings
        self._log_path = log_path
        self._log_bytes = 0
        self._log_lines: list[dict[str, Any]] = []
        command = [sys.executable, "-m", "stream_metrics"]
        if stumble is not None or host is not None:
            changes = {"host": host, "point": None, "count": 0, "how": 0}
            if stumble is not None:
                assert stumble.point in POINTS
                changes |= {"point": stumble.point, "count": stumble.count, "how": int(stumble.how)}
            command = [sys.executable, "-m", "support.sidecar_process", json.dumps(changes)]
        with log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, "run", *flags(settings)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=plain_environment(),
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    def log(self) -> list[dict[str, Any]]:
        """Returns the whole log lines so far; what isn't one of ours comes as the message of a line."""
        with self._log_path.open("rb") as log:
            log.seek(self._log_bytes)
            text = log.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._log_bytes += len(whole)
        self._log_lines += map(_parsed, whole.splitlines())
        return list(self._log_lines)

    def said(self, start: str) -> list[dict[str, Any]]:
        """Returns the log lines whose message starts so."""
        return [line for line in self.log() if line["message"].startswith(start)]

    def wait_for(self, start: str, count: int = 1, deadline_seconds: float = DEADLINE_SECONDS) -> dict[str, Any]:
        """Returns the `count`-th log line whose message starts so."""
        self._wait(lambda: len(self.said(start)) >= count, f"{start!r}, {count} times", deadline_seconds)
        return self.said(start)[count - 1]

    def wait_until_ended(self, deadline_seconds: float = DEADLINE_SECONDS) -> int:
        """Returns the exit code; minus the signal's number where one ended it."""
        try:
            return self._process.wait(deadline_seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"{self.name} didn't end within {deadline_seconds:g} s; its log:\n{self.told()}"
            ) from None

    def kill(self) -> None:
        """It is dead, without a chance to do anything."""
        self._process.kill()
        self._process.wait()

    def terminate(self, deadline_seconds: float = DEADLINE_SECONDS) -> int:
        """Asks it to end and returns its exit code."""
        self._process.terminate()
        return self.wait_until_ended(deadline_seconds)

    def send(self, number: signal.Signals) -> None:
        """The signal is on its way; a frozen process gets it when it wakes."""
        self._process.send_signal(number)

    def wait_until_frozen(self, deadline_seconds: float = DEADLINE_SECONDS) -> None:
        """It stands still, by its own stumble or by `freeze`."""

        def is_frozen() -> bool:
            how = os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT
            state = os.waitid(os.P_PID, self.pid, how)
            return state is not None and state.si_code == os.CLD_STOPPED

        self._wait(is_frozen, "it is frozen", deadline_seconds)

    def freeze(self) -> None:
        """It stands still, its sockets open, as in a long pause of its machine."""
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def told(self) -> str:
        """Returns the log's end, for the message of a failure."""
        return self._log_path.read_text(errors="replace")[-8_000:]

    def _wait(self, condition: Callable[[], bool], what: str, deadline_seconds: float) -> None:
        def holds() -> bool:
            if condition():
                return True
            if self.exit_code is not None and not condition():
                raise AssertionError(f"{self.name} ended with {self.exit_code} before {what}; its log:\n{self.told()}")
            return False

        try:
            wait_until(holds, f"{self.name}: {what}", deadline_seconds)
        except AssertionError as error:
            error.add_note(self.told())
            raise


@dataclass
class Deployment:
    """What the replicas of one group share.

    Attributes:
        settings: By flag name, without topics, group and brokers; True for a switch.
        processes: All that were started.
    """

    bootstrap: str
    folder: Path
    input_topic: str
    output_topic: str
    dead_letter_topic: str
    group: str
    partitions: int
    settings: dict[str, Any]
    processes: list[SidecarProcess] = field(default_factory=list)
    _watchers: dict[str, Consumer] = field(default_factory=dict)

    def start(
        self, name: str | None = None, stumble: Stumble | None = None, host: str | None = None, **more: Any
    ) -> SidecarProcess:
        """Starts a replica.

        Args:
            name: For log files and messages.
            stumble: Where it ends or freezes itself.
            host: What it takes for its host's name.
            more: Settings beside the deployment's; underscores stand for hyphens.
        """
        name = name or f"sidecar-{len(self.processes)}"
        settings = {
            "bootstrap-servers": self.bootstrap,
            "input-topic": self.input_topic,
            "output-topic": self.output_topic,
            "dead-letter-topic": self.dead_letter_topic,
            "group-id": self.group,
            "log-format": "json",
            **self.settings,
            **{key.replace("_", "-"): value for key, value in more.items()},
        }
        path = self.folder / f"{len(self.processes):03}-{name}.log"
        process = SidecarProcess(name, settings, path, stumble, host)
        self.processes.append(process)
        return process

    def fold_settings(self) -> dict[str, Any]:
        """Returns those settings that `replay` has too."""
        shared = {one.name for one in DEFINITIONS if "replay" in one.about.commands}
        return {name: value for name, value in self.settings.items() if name in shared}

    def committed(self, *, is_stable: bool = False) -> dict[int, int]:
        """Returns the group's committed offsets, -1 for none; stable ones wait for open transactions to end."""
        places = [TopicPartition(self.input_topic, partition) for partition in range(self.partitions)]
        watcher = self._watcher("read_committed" if is_stable else "read_uncommitted")

        def answer() -> list[TopicPartition]:
            try:
                return watcher.committed(places, timeout=30)
            except KafkaException as error:
                if error.args[0].code() in _PASSING:
                    return []
                raise

        answered = wait_until(answer, "committed offsets")
        return {one.partition: max(one.offset, -1) for one in answered}

    def committed_note(self, partition: int = 0) -> str:
        """Returns the metadata of a committed offset."""
        (answered,) = self._watcher("read_committed").committed([TopicPartition(self.input_topic, partition)], 30)
        assert answered.metadata
        return str(answered.metadata)

    def ends(self) -> dict[int, int]:
        """Returns the end of each input partition, open transactions included."""
        return {partition: self.end_of(self.input_topic, partition) for partition in range(self.partitions)}

    def end_of(self, topic: str, partition: int) -> int:
        """Returns the end of one partition, open transactions included."""
        watcher = self._watcher("read_uncommitted")
        return wait_until(lambda: watermarks(watcher, topic, partition), f"the end of {topic}")[1]

    def close(self) -> None:
        """All processes are dead and all clients closed."""
        for process in self.processes:
            process.kill()
        for watcher in self._watchers.values():
            watcher.close()

    def _watcher(self, isolation: str) -> Consumer:
        """Returns a client that reads the group's offsets and is no member of it."""
        if isolation not in self._watchers:
            config = {"bootstrap.servers": self.bootstrap, "group.id": self.group, "log_level": 0}
            self._watchers[isolation] = Consumer({**config, "isolation.level": isolation})
        return self._watchers[isolation]

    def wait_until_all_is_committed(self, stall_seconds: float = DEADLINE_SECONDS) -> None:
        """All that is in the input topic has been folded and committed.

        Args:
            stall_seconds: How long neither offsets nor ends may move before this is given up.
        """

        now: tuple[dict[int, int], dict[int, int]] = ({}, {})

        def is_done() -> bool:
            return bool(now[1]) and all(now[0][partition] >= end for partition, end in now[1].items() if end)

        def has_moved() -> bool:
            nonlocal now
            last, now = now, (self.committed(), self.ends())
            return now != last or is_done()

        try:
            while not is_done():
                wait_until(has_moved, "more is committed", stall_seconds)
        except AssertionError as error:
            error.add_note(f"committed {now[0]}, ends {now[1]}")
            for process in self.processes[-3:]:
                error.add_note(f"{process.name} (exit code {process.exit_code}):\n{process.told()}")
            raise


@contextmanager
def deployment(bootstrap: str, folder: Path, partitions: int = 4, **settings: Any) -> Iterator[Deployment]:
    """A deployment with topics of its own, whose processes end with it.

    Args:
        bootstrap: The broker.
        folder: For log files and dumps.
        partitions: Of the input topic; the output topic has two.
        settings: Beside topics and group; underscores stand for hyphens.
    """
    made = Deployment(
        bootstrap,
        folder,
        create_topic(bootstrap, "input", partitions),
        create_topic(bootstrap, "output", 2, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.99"}),
        create_topic(bootstrap, "letters"),
        unique_name("group"),
        partitions,
        {name.replace("_", "-"): value for name, value in settings.items()},
    )
    try:
        yield made
    except BaseException as error:
        for process in made.processes[-4:]:
            error.add_note(f"--- {process.name} (exit code {process.exit_code})\n{process.told()[-3_000:]}")
        raise
    finally:
        made.close()


def flags(settings: dict[str, Any]) -> list[str]:
    """Returns settings as flags: True for a switch, a list for a flag that may be repeated."""
    made = []
    for name, value in settings.items():
        for one in value if isinstance(value, list) else [value]:
            made += [f"--{name}"] if one is True else [f"--{name}", str(one)]
    return made


def plain_environment() -> dict[str, str]:
    """Returns the environment without settings of ours, which would change what a test starts, and with `support`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("STREAM_METRICS_")}
    path = os.pathsep.join(filter(None, (str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH"))))
    return {**kept, "PYTHONPATH": path}


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(line)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict) or "message" not in parsed:
        return {"message": line.decode("utf-8", "replace"), "level": "unknown"}
    return parsed


def _change(host: str | None, point: str | None, count: int, how: int) -> None:
    """Gives this process another host name, and lets it do something to itself at a point of its work."""
    import socket

    from confluent_kafka import Producer

    from stream_metrics.sidecar import transactions
    from stream_metrics.sidecar.owned import Owned

    if host is not None:
        socket.gethostname = lambda: host
    left = count

    def reach(reached: str) -> None:
        nonlocal left
        if reached == point:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), how)

    class MortalProducer(Producer):
        def begin_transaction(self, *args: Any) -> Any:
            reach("before_begin")
            return super().begin_transaction(*args)

        def send_offsets_to_transaction(self, *args: Any) -> Any:
            reach("before_offsets")
            answer = super().send_offsets_to_transaction(*args)
            reach("after_offsets")
            return answer

        def commit_transaction(self, *args: Any) -> Any:
            answer = super().commit_transaction(*args)
            reach("after_commit")
            return answer

    make, feed = Owned.__init__, Owned.feed

    def make_or_stumble(self: Owned, *args: Any, **more: Any) -> None:
        make(self, *args, **more)
        reach("taking_over")

    def feed_or_stumble(self: Owned, records: Any) -> int:
        if self.is_restoring:
            reach("restoring")
        return feed(self, records)

    transactions.Producer = MortalProducer
    Owned.__init__, Owned.feed = make_or_stumble, feed_or_stumble


if __name__ == "__main__":
    from stream_metrics.cli import main

    _change(**json.loads(sys.argv[1]))
    sys.exit(main(sys.argv[2:]))

"""What the benchmarks share: a broker, topics, processes with their memory and time, and what was measured as a table.

Rules: peers take turns within one run on one broker; medians are given; every result is checked; nothing ever fails on
a time. A process is measured from outside: its peak memory and its processor time are the kernel's.
"""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))

from support.brokers import UnavailableError, closing, find_broker  # noqa: E402
from support.sidecar_process import flags, plain_environment  # noqa: E402
from support.topics import create_topic, unique_name  # noqa: E402

__all__ = ["create_topic", "unique_name"]

DEADLINE_SECONDS = 300.0


@contextmanager
def broker() -> Iterator[tuple[str, str]]:
    """Yields address and kind of a broker: the one KAFKA_BOOTSTRAP_SERVERS names, or one started and ended here."""
    try:
        found = find_broker()
    except UnavailableError as error:
        raise SystemExit(f"no broker to measure on: {error}\nKAFKA_BOOTSTRAP_SERVERS=host:port names one") from None
    for started in closing(found):
        yield started.bootstrap, "a broker given" if os.environ.get("KAFKA_BOOTSTRAP_SERVERS") else started.description


def delete_topics(bootstrap: str, names: Sequence[str]) -> None:
    if names:
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})  # kept: what it promises ends with it
        for future in admin.delete_topics(list(names)).values():
            future.result(30)


class Process:
    """A measured program with its output in a file. It ends when told to, so that it can be looked at before."""

    def __init__(self, command: Sequence[str], log: Path, environment: dict[str, str] | None = None) -> None:
        self.log = log
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**plain_environment(), **(environment or {})},
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_for(self, text: str) -> dict[str, Any]:
        """Returns the first line with the text, a JSON object."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while time.monotonic() < deadline:
            for line in self.log.read_text(errors="replace").splitlines():
                if text in line and line.startswith("{") and line.endswith("}"):
                    found: dict[str, Any] = json.loads(line)
                    return found
            self.check_alive()
            time.sleep(0.02)
        raise RuntimeError(f"{text!r} didn't come:\n{self.told()}")

    def check_alive(self) -> None:
        if self._process.poll() is not None:
            raise RuntimeError(f"ended with {self._process.returncode}:\n{self.told()}")

    def told(self) -> str:
        return self.log.read_text(errors="replace")[-4_000:]

    def mib(self, what: str = "VmHWM") -> float:
        """Returns its peak memory, or what it has now as `VmRSS`."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(what + ":"):
                return int(line.split()[1]) / 1024
        raise RuntimeError(f"process {self.pid} has no {what}")

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def end(self) -> None:
        """It has ended, in order where it can."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def sidecar(bootstrap: str, source: str, output: str, letters: str, group: str, log: Path, **more: Any) -> Process:
    """Returns the real sidecar as a process, with default settings."""
    settings = {
        "bootstrap-servers": bootstrap,
        "input-topic": source,
        "output-topic": output,
        "dead-letter-topic": letters,
        "group-id": group,
        "log-format": "json",
        **{name.replace("_", "-"): value for name, value in more.items()},
    }
    return Process([sys.executable, "-m", "stream_metrics", "run", *flags(settings)], log)


def began(line: dict[str, Any]) -> float:
    """Returns the Unix time of a log line of the sidecar."""
    return datetime.fromisoformat(line["time"]).timestamp()


class Watcher:
    """A reader of a topic as `read_committed` sees it; its thread notes when each record could be read.

    Attributes:
        seen: Unix time, key and value of each record.
    """

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.seen: list[tuple[float, bytes | None, bytes]] = []
        self._is_over = False
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": unique_name("watcher"),
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 100,
                "log_level": 0,
            }
        )
        partitions = self._consumer.list_topics(topic, timeout=30).topics[topic].partitions
        self._consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def wait_for(self, count: int, process: Process | None = None) -> float:
        """Returns the Unix time at which the `count`-th record could be read."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while len(self.seen) < count:
            if process is not None:
                process.check_alive()
            if time.monotonic() > deadline:
                raise RuntimeError(f"{len(self.seen)} of {count} results:\n{process.told() if process else ''}")
            time.sleep(0.005)
        return self.seen[count - 1][0]

    def close(self) -> None:
        self._is_over = True
        self._thread.join()
        self._consumer.close()

    def _watch(self) -> None:
        while not self._is_over:
            message = self._consumer.poll(0.1)
            if message is not None and message.error() is None:
                self.seen.append((time.time(), message.key(), message.value() or b""))


def percentile(values: Sequence[float], percent: float) -> float:
    """Returns the smallest value that so many percent don't exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def machine() -> dict[str, Any]:
    """Returns what the numbers depend on."""
    import confluent_kafka
    import msgspec
    import numpy

    model = ""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        named = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = named[0].partition(":")[2].strip() if named else ""
    return {
        "processor": model or platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "python": platform.python_version(),
        "confluent_kafka": confluent_kafka.__version__,
        "librdkafka": confluent_kafka.libversion()[0],
        "msgspec": msgspec.__version__,
        "numpy": numpy.__version__,
        "load_before": round(os.getloadavg()[0], 2),
        "date": datetime.now(UTC).date().isoformat(),
    }

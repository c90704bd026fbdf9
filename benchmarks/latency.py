"""From producing a close marker to its readable result, with 20,000 samples open. Prints milliseconds and a ratio.

    python benchmarks/latency.py [--trials 40]

A trial: 20,000 samples of a new step, a pause until all is folded and quiet, then the marker; the clock runs from just
before it is produced until a `read_committed` reader has the result. In turn with it:

- the quickest loop that publishes exactly once, `peers/transaction_loop.py`, which has two metrics and forgets all in a
  crash;
- what the broker itself takes: a bare transaction of one record, from its begin until such a reader has the record.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import load
import rig
from confluent_kafka import Producer

QUIET_SECONDS = 0.5
RECENT_SECONDS = 0.2
WARM_UP = 5
"""The broker takes some milliseconds more over the first transactions of a new topic, once over the fourth."""


Start = Callable[[str, str, Path], rig.Process]
"""Starts a program on its input and output topic, with a file for what it says."""


class BareTransactions:
    """A producer that writes one record a transaction, and nothing else."""

    def __init__(self, bootstrap: str) -> None:
        self._topic = rig.create_topic(bootstrap, "bench-bare")
        self._watcher = rig.Watcher(bootstrap, self._topic)
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "transactional.id": rig.unique_name("bare"), "linger.ms": 0}
        )
        self._producer.init_transactions(30)
        self._count = 0

    def measure(self) -> float:
        began = time.time()
        self._producer.begin_transaction()
        self._producer.produce(self._topic, b"x")
        self._producer.flush(30)
        self._producer.commit_transaction(30)
        self._count += 1
        return self._watcher.wait_for(self._count) - began

    def close(self, bootstrap: str) -> None:
        self._watcher.close()
        rig.delete_topics(bootstrap, [self._topic])


class Reader:
    """A program that reads samples from a topic of its own and publishes a step's result when its marker arrives."""

    def __init__(self, bootstrap: str, folder: Path, start: Start, ready: str) -> None:
        self._topics = self._source, output = [rig.create_topic(bootstrap, f"bench-{kind}") for kind in ("in", "out")]
        self._watcher = rig.Watcher(bootstrap, output)
        self._writer, self._markers = (load.Writer(bootstrap, **{"linger.ms": linger}) for linger in (5, 0))
        self._process = start(self._source, output, folder / f"{output}.log")
        self._ready = ready

    def wait(self) -> None:
        self._process.wait_for(self._ready)

    def take(self, samples: list[bytes]) -> None:
        for value in samples:
            self._writer.write(self._source, value)
        self._writer.flush()

    def measure(self, step: load.Step, marker: bytes) -> float:
        began = time.time()
        self._markers.write(self._source, marker)
        self._markers.serve()
        made = self._watcher.wait_for(step.number + 1, self._process) - began
        self._markers.flush()
        result = json.loads(self._watcher.seen[-1][2])
        metrics = {name.removeprefix("rollout/"): value for name, value in result.get("metrics", result).items()}
        is_whole = metrics["num_training_samples"] == load.STEP and result.get("complete", True)
        if not is_whole or abs(metrics["episode_raw_reward"] - step.episode_raw_reward) > 1e-9:
            raise RuntimeError(f"a wrong result: {result}")
        return made

    def close(self, bootstrap: str) -> None:
        self._process.end()
        self._watcher.close()
        rig.delete_topics(bootstrap, self._topics)


def measure(bootstrap: str, trials: int) -> dict[str, Any]:
    """Returns percentiles in milliseconds."""
    letters = rig.create_topic(bootstrap, "bench-letters")

    def sidecar(source: str, output: str, log: Path) -> rig.Process:
        return rig.sidecar(bootstrap, source, output, letters, rig.unique_name("bench"), log)

    def loop(source: str, output: str, log: Path) -> rig.Process:
        script = str(rig.HERE / "peers" / "transaction_loop.py")
        return rig.Process([sys.executable, script, bootstrap, source, output, rig.unique_name("bench")], log)

    rng = random.Random(1)
    seconds: dict[str, list[float]] = {"": [], "loop_": [], "bare_": []}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as open_ones:
        open_ones.callback(rig.delete_topics, bootstrap, [letters])
        bare = BareTransactions(bootstrap)
        open_ones.callback(bare.close, bootstrap)
        readers = {
            "": Reader(bootstrap, Path(folder), sidecar, "partitions assigned"),
            "loop_": Reader(bootstrap, Path(folder), loop, "ready"),
        }
        for reader in readers.values():
            open_ones.callback(reader.close, bootstrap)
            reader.wait()
        for step in load.steps((trials + WARM_UP) * load.STEP):
            *samples, marker = load.records(step, load.JSON)
            for reader in readers.values():
                reader.take(samples)
            time.sleep(QUIET_SECONDS + rng.random() * RECENT_SECONDS)
            seconds["bare_"].append(bare.measure())
            for name, reader in readers.items():
                time.sleep(RECENT_SECONDS)
                seconds[name].append(reader.measure(step, marker))
    ms = {name: [one * 1000 for one in ones[WARM_UP:]] for name, ones in seconds.items()}
    made: dict[str, Any] = {"trials": trials}
    for name, ones in ms.items():
        made |= {f"{name}p{percent}_ms": round(rig.percentile(ones, percent), 1) for percent in (50, 90, 99)}
    for percent in (50, 99):
        made[f"by_loop_p{percent}"] = round(made[f"p{percent}_ms"] / made[f"loop_p{percent}_ms"], 2)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=40)
    options = parser.parse_args()
    with rig.broker() as (bootstrap, _):
        print(json.dumps(measure(bootstrap, options.trials)))


if __name__ == "__main__":
    main()

"""From producing a close marker to its readable result, with 20,000 samples open. Prints milliseconds and a ratio.

    python benchmarks/latency.py [--trials 40]

A trial: 20,000 samples of a new step, a pause until all is folded and quiet, then the marker; the clock runs from just
before it is produced until a `read_committed` reader has the result. Beside it, in turn, what the broker itself takes:
a bare transaction of one record, from its begin until the same kind of reader has the record.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import load
import rig
from confluent_kafka import Producer

QUIET_SECONDS = 0.5
RECENT_SECONDS = 0.2
WARM_UP = 5
"""The broker takes some milliseconds more over the first transactions of a new topic, once over the fourth."""


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


def measure(bootstrap: str, trials: int) -> dict[str, Any]:
    """Returns percentiles in milliseconds."""
    source, output, letters = (rig.create_topic(bootstrap, f"bench-{kind}") for kind in ("in", "out", "letters"))
    watcher, bare = rig.Watcher(bootstrap, output), BareTransactions(bootstrap)
    writer, markers = load.Writer(bootstrap, **{"linger.ms": 5}), load.Writer(bootstrap, **{"linger.ms": 0})
    rng = random.Random(1)
    seconds: list[float] = []
    bare_seconds: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        group = rig.unique_name("bench")
        process = rig.sidecar(bootstrap, source, output, letters, group, Path(folder) / "log")
        try:
            process.wait_for("partitions assigned")
            for step in load.steps((trials + WARM_UP) * load.STEP):
                *samples, marker = load.records(step, load.JSON)
                for value in samples:
                    writer.write(source, value)
                writer.flush()
                time.sleep(QUIET_SECONDS + rng.random() * RECENT_SECONDS)
                bare_seconds.append(bare.measure())
                time.sleep(RECENT_SECONDS)
                began = time.time()
                markers.write(source, marker)
                markers.serve()
                seconds.append(watcher.wait_for(step.number + 1, process) - began)
                markers.flush()
                result = json.loads(watcher.seen[-1][2])
                if result["metrics"]["rollout/num_training_samples"] != load.STEP or not result["complete"]:
                    raise RuntimeError(f"a wrong result: {result}")
        finally:
            process.end()
            watcher.close()
            bare.close(bootstrap)
            rig.delete_topics(bootstrap, [source, output, letters])
    ms, bare_ms = ([one * 1000 for one in all_of[WARM_UP:]] for all_of in (seconds, bare_seconds))
    return {
        "trials": trials,
        **{f"p{percent}_ms": round(rig.percentile(ms, percent), 1) for percent in (50, 90, 99)},
        **{f"bare_p{percent}_ms": round(rig.percentile(bare_ms, percent), 1) for percent in (50, 90, 99)},
        "ratio_p50": round(rig.percentile(ms, 50) / rig.percentile(bare_ms, 50), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=40)
    options = parser.parse_args()
    with rig.broker() as (bootstrap, _):
        print(json.dumps(measure(bootstrap, options.trials)))


if __name__ == "__main__":
    main()

"""What a trainer pays for its producer: time in `emit_step`, as a ratio to `json.dumps` of the same samples.

    python benchmarks/producing.py [--samples 20000] [--rounds 7]

No broker: the client takes each record and acknowledges it at the next poll. The time is the calling thread's alone,
wall clock, while the background thread works beside it.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from confluent_kafka import KafkaError

from stream_metrics.producers.client import RolloutProducer


class Sink:
    """A Kafka client that acknowledges everything at the next poll."""

    def __init__(self, _: Callable[[KafkaError], None]) -> None:
        self._waiting: list[Callable[[KafkaError | None, Any], None]] = []

    def produce(self, topic: str, value: bytes, key: bytes, *, on_delivery: Callable[[Any, Any], None]) -> None:
        self._waiting.append(on_delivery)

    def poll(self, timeout: float) -> int:
        waiting, self._waiting = self._waiting, []
        for tell in waiting:
            tell(None, None)
        if not waiting:
            time.sleep(min(timeout, 0.001))
        return len(waiting)

    def flush(self, timeout: float) -> int:
        while self._waiting:
            self.poll(0)
        return 0

    def purge(self, in_queue: bool = True, in_flight: bool = True, blocking: bool = True) -> None:
        self._waiting.clear()

    def __len__(self) -> int:
        return len(self._waiting)


def samples(count: int) -> list[Any]:
    """Returns samples as a trainer holds them: objects with more on them than travels."""
    rng = random.Random(1)
    return [
        SimpleNamespace(
            group_index=number // 128, rollout_id=number // 4, index=number, reward=rng.random(),
            status="completed", response_length=rng.randrange(8000), metadata={"raw_reward": rng.random()},
            weight_versions=[7], tokens=[0] * 50, prompt="p" * 100, response="r" * 500,
        )
        for number in range(count)
    ]  # fmt: skip


def plain(sample: Any) -> dict[str, Any]:
    names = ("group_index", "rollout_id", "index", "reward", "status", "response_length", "metadata", "weight_versions")
    return {"type": "sample", "run_id": "r", "step": 0, **{name: getattr(sample, name) for name in names}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    made = samples(arguments.samples)
    emitting, dumping = [], []
    with RolloutProducer("nowhere:1", run_id="r", spool_directory="", raise_errors=True, connect=Sink) as producer:
        for step in range(arguments.rounds):
            begun = time.perf_counter()
            for sample in made:
                json.dumps(plain(sample)).encode()
            dumping.append(time.perf_counter() - begun)
            begun = time.perf_counter()
            producer.emit_step(made, step=step)
            emitting.append(time.perf_counter() - begun)
            producer.close_step(step)
        producer.flush(60)
        counts = producer.counts
        assert not counts.dropped and counts.acknowledged == arguments.rounds * len(made), counts
    each, dumped = (statistics.median(times) / len(made) * 1e6 for times in (emitting, dumping))
    print(f"{len(made):,} samples a step, median of {arguments.rounds}")
    print(f"emit_step {each:5.1f} µs a sample")
    print(f"json.dumps {dumped:4.1f} µs a sample, ratio {each / dumped:.2f}")


if __name__ == "__main__":
    main()

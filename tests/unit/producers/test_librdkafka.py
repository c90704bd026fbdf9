"""The producer with the real client, against the mock cluster that librdkafka brings: no network, no Java, no promises.

What depends on a broker's own behaviour is in `tests/integration`.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from stream_metrics.producers import RolloutProducer


def make(directory: Path, **client_config: Any) -> RolloutProducer:
    config = {"test.mock.num.brokers": 1, "log_level": 0, **client_config}
    return RolloutProducer("unused:1", run_id="r", spool_directory=directory, client_config=config)


def longest_call(producer: RolloutProducer, steps: int) -> float:
    longest = 0.0
    samples = [{"rollout_id": n, "reward": 1.0} for n in range(512)]
    for step in range(steps):
        for work in (lambda: producer.emit_step(samples, step=step), lambda: producer.close_step(step)):  # noqa: B023
            start = time.perf_counter()
            work()
            longest = max(longest, time.perf_counter() - start)
    return longest


@pytest.mark.parametrize("rtt_ms", [0, 300])
def test_a_slow_broker_slows_no_call_down(tmp_path: Path, rtt_ms: int) -> None:
    with make(tmp_path, **{"test.mock.broker.rtt": rtt_ms}) as producer:
        # A step's samples and marker take two round trips; a call has a budget of 0.2 s, which nothing here uses up.
        assert longest_call(producer, 4) < 0.25
        assert producer.flush(30)
        assert (producer.counts.acknowledged, producer.counts.closes_acknowledged) == (4 * 512, 4)
    assert list(tmp_path.iterdir()) == []


def test_a_broker_that_is_not_there_slows_no_call_down_and_all_is_on_disk(tmp_path: Path) -> None:
    producer = RolloutProducer("127.0.0.1:1", run_id="r", spool_directory=tmp_path, close_seconds=0.1)
    assert longest_call(producer, 4) < 0.25
    start = time.perf_counter()
    producer.close()
    assert time.perf_counter() - start < 5.0
    assert producer.counts.spooled == 4 * 512
    assert producer.counts.dropped.total() == 0

"""A loop that takes longer over its work than the group lets it: another replica goes on, and nothing comes twice.

The process lives all the while and its client keeps up the session, as when a step is huge or a disk slow.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Message

from stream_metrics.config import Settings
from stream_metrics.sidecar.health import Health
from stream_metrics.sidecar.loop import Sidecar
from stream_metrics.sidecar.self_metrics import SelfMetrics
from stream_metrics.testing import close, sample
from support.brokers import Broker
from support.operations import operated
from support.waiting import wait_until


class _Busy(Sidecar):
    """Between its first fold and the commit it works until it `may_go`, and may do so for 6 s instead of 5 minutes."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.works, self.may_go = threading.Event(), threading.Event()

    def _consumer_config(self) -> dict[str, Any]:
        return {**super()._consumer_config(), "max.poll.interval.ms": 6_000, "session.timeout.ms": 6_000}

    def _fold(self, messages: list[Message]) -> None:
        super()._fold(messages)
        if any(owned.pending for owned in self._owned.values()):
            self.works.set()
            self.may_go.wait(60)


def test_a_step_that_takes_longer_than_a_poll_may_is_published_once_by_another_replica(
    broker: Broker, tmp_path: Path
) -> None:
    with operated(broker.bootstrap, tmp_path) as sidecar:
        made, metrics = sidecar.deployment, SelfMetrics()
        settings = Settings(
            bootstrap_servers=broker.bootstrap,
            input_topic=made.input_topic,
            output_topic=made.output_topic,
            dead_letter_topic=made.dead_letter_topic,
            group_id=made.group,
        )
        busy = _Busy(settings, f"{made.group}-busy", Health(1.0, time.monotonic), metrics)
        thread = threading.Thread(target=busy.run, name="busy", daemon=True)
        thread.start()
        try:
            sidecar.send(sample(1, 1.0), close(1))
            assert busy.works.wait(60)
            sidecar.start()  # the group gives it nothing yet: it waits for the one that works
            sidecar.process.wait_for("partitions assigned", deadline_seconds=60)
            sidecar.wait_for_results(1)
            busy.may_go.set()

            def has_noticed() -> bool:
                value = metrics.registry.get_sample_value
                lost = value("stream_metrics_rebalances_total", {"kind": "lost"}) or 0
                return lost + (value("stream_metrics_restarts_total") or 0) > 0

            wait_until(has_noticed, "it notices what it has lost", 60)
            sidecar.send(sample(2, 1.0), close(2))
            sidecar.wait_for_results(2)
            sidecar.wait_until_read()
            assert thread.is_alive()
        finally:
            busy.may_go.set()
            busy.stop()
            thread.join(30)
        assert not thread.is_alive()
        assert len(sidecar.results()) == 2

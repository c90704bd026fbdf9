"""Reads a run's results from the output topic, as any consumer of them would."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from stream_metrics.events import EventError, StepMetrics, decode_result

_ANSWER_SECONDS: Final = 10.0


class ResultsReader:
    """A read_committed reader of one run's results; commits nothing.

    Args:
        client_config: How to reach the broker.
        topic: The output topic, which is there.
        run_id: Whose results to read.
    """

    def __init__(self, client_config: Mapping[str, Any], topic: str, run_id: str) -> None:
        self._run_id = run_id
        self._consumer = Consumer(
            {
                "log_level": 2,
                **client_config,
                "group.id": f"{run_id}-view",  # the client wants one even where no group is joined
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
            }
        )
        partitions = self._consumer.list_topics(topic, timeout=_ANSWER_SECONDS).topics[topic].partitions
        self._consumer.assign([TopicPartition(topic, one, OFFSET_BEGINNING) for one in partitions])

    def poll(self, seconds: float) -> StepMetrics | None:
        """Returns the next result of the run, or None where none comes in time."""
        message = self._consumer.poll(seconds)
        if message is None or message.error() is not None:
            return None
        value = message.value()
        if value is None:
            return None
        with contextlib.suppress(EventError):
            result = decode_result(value)
            if result.run_id == self._run_id:
                return result
        return None

    def close(self) -> None:
        """Lets go of the broker."""
        self._consumer.close()

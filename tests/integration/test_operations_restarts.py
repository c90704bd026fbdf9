"""What a sidecar that begins anew leaves behind: nothing, however often it does."""

from __future__ import annotations

import gc
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stream_metrics.config import Settings
from stream_metrics.sidecar.errors import RestartError
from stream_metrics.sidecar.health import Health
from stream_metrics.sidecar.loop import Sidecar
from stream_metrics.sidecar.self_metrics import SelfMetrics
from support.brokers import Broker
from support.topics import create_topic

TIMES = 6


class Restless(Sidecar):
    """Begins anew each time that it is at work."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.clients: list[int] = []

    def _turn(self) -> None:
        super()._turn()
        if self._owned:
            self.clients.append(num_clients())
            if len(self.clients) == TIMES:
                self.stop()
            else:
                raise RestartError("once more")

    def _pause(self, seconds: float) -> None:
        super()._pause(min(seconds, 0.01))


def num_clients() -> int:
    """Returns how many of librdkafka's clients live in this process."""
    threads = Path("/proc/self/task").glob("*/comm")
    return sum(thread.read_text() == "rdk:main\n" for thread in threads)


@pytest.fixture
def collector_that_looks_seldom() -> Iterator[None]:
    """As in the sidecar's process; what is garbage already is none of this test's."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="threads are counted where Linux lists them")
def test_a_start_leaves_no_client_to_the_next(broker: Broker, collector_that_looks_seldom: None) -> None:
    topics = {f"{name}_topic": create_topic(broker.bootstrap, name) for name in ("input", "output", "dead_letter")}
    settings = Settings(bootstrap_servers=broker.bootstrap, group_id=f"group-{uuid.uuid4().hex[:12]}", **topics)
    health = Health(settings.dead_letter_limit, time.monotonic)
    sidecar = Restless(settings, settings.group_id, health, SelfMetrics())
    sidecar.run()
    assert len(sidecar.clients) == TIMES
    assert sidecar.clients[-1] <= sidecar.clients[1], sidecar.clients

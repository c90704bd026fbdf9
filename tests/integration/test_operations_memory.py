"""What a client has to tell and nobody asks for must not pile up: memory stays as it is."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from support.brokers import Broker
from support.operations import Operated, operated

MIB = 2**20
SECONDS = 8.0
INTERVAL_MS = 2
"""Of the client's statistics. As many come in this test as with one a second in an hour; each has some kilobytes."""


def _rss_bytes(sidecar: Operated) -> int:
    return int(Path(f"/proc/{sidecar.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _growth_bytes(sidecar: Operated) -> int:
    before = _rss_bytes(sidecar)
    threading.Event().wait(SECONDS)
    return _rss_bytes(sidecar) - before


@pytest.mark.parametrize("is_broker_there", [True, False])
def test_an_hours_statistics_that_nobody_wants_leave_memory_flat(
    stoppable_broker: Broker, tmp_path: Path, is_broker_there: bool
) -> None:
    with operated(stoppable_broker.bootstrap, tmp_path) as sidecar:
        sidecar.start_ready(kafka_config=f"statistics.interval.ms={INTERVAL_MS}")
        sidecar.wait_until(lambda: sidecar.get("/readyz")[0] == 200, "ready")
        if not is_broker_there:
            stoppable_broker.kill()
            sidecar.wait_until(lambda: sidecar.get("/readyz")[0] == 503, "not ready", 60)
        sidecar.wait_until(lambda: _growth_bytes(sidecar) < 6 * MIB, "seconds in which memory stays", 5 * SECONDS)
        assert sidecar.get("/healthz")[0] == 200

"""Three brokers, of which one after another goes and comes back: leaders and coordinators move, and nothing is lost.

A single broker that begins again answers the same questions alike; that others answer them is shown here alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.brokers import Cluster, UnavailableError
from support.oracle import Ledger, settle_exact
from support.sidecar_process import deployment
from support.traffic import Flow, Traffic, draw_seed

pytestmark = pytest.mark.chaos


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    try:
        made = Cluster()
    except UnavailableError as error:
        pytest.skip(str(error))
    yield made
    made.close()


def test_leaders_and_coordinators_that_move_cost_no_step_and_double_none(cluster: Cluster, tmp_path: Path) -> None:
    seed = draw_seed()
    settings = {"instance_id": "a", "session_timeout": 20, "transaction_timeout": 10, "commit_interval": 0.2}
    with deployment(cluster.bootstrap, tmp_path, 6, close_grace=1, **settings) as deployed:
        ledger = Ledger(deployed)
        sidecar = deployed.start()
        with Flow(cluster.bootstrap, deployed.input_topic, Traffic(seed, runs=6, partitions=6), 300) as flow:
            sidecar.wait_for("step closed", 5, 60)
            for number, node in enumerate(cluster.nodes):
                for end in (node.stop, node.kill) if number == 0 else (node.kill,):
                    end()
                    sidecar.wait_for("step closed", len(sidecar.said("step closed")) + 10, 90)
                    node.start()
                    sidecar.wait_for("step closed", len(sidecar.said("step closed")) + 10, 90)
                    ledger.note_offsets()
            flow.finish()
        got = settle_exact(deployed, ledger)
        assert len(got.on_time) > 40
        assert sidecar.terminate() == 0

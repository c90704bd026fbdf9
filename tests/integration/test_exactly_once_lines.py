"""Lines that break in the middle of a transaction, at each of its requests: every step comes out once and exact.

The broker gives the transaction up, or has committed it and can't say so; the sidecar has to find out which.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from support.brokers import Broker
from support.oracle import assert_exact, settle
from support.proxy import Api, Line, Proxy
from support.sidecar_process import Deployment, SidecarProcess, deployment
from support.traffic import Flow, Traffic, draw_seed
from support.waiting import wait_until

pytestmark = pytest.mark.chaos

SETTINGS: dict[str, Any] = {
    "session_timeout": 6,
    "transaction_timeout": 2,
    "commit_interval": 0.2,
    "close_grace": 1,
}
CLIENT = "it"


class Wired(NamedTuple):
    """A deployment whose replicas reach the broker through a proxy."""

    deployed: Deployment
    proxy: Proxy
    broker: Broker

    def start(self) -> SidecarProcess:
        return self.deployed.start(
            bootstrap_servers=self.broker.proxied_bootstrap, kafka_config=f"client.id={CLIENT}", instance_id="a"
        )

    def flow(self, seed: int) -> Flow:
        return Flow(self.deployed.bootstrap, self.deployed.input_topic, Traffic(seed, samples=40))


@pytest.fixture
def wired(stoppable_broker: Broker, tmp_path: Path) -> Iterator[Wired]:
    with (
        Proxy(stoppable_broker.proxied_bootstrap, stoppable_broker.proxy_target) as proxy,
        deployment(stoppable_broker.bootstrap, tmp_path, **SETTINGS) as deployed,
    ):
        yield Wired(deployed, proxy, stoppable_broker)


APIS = [Api.ADD_PARTITIONS_TO_TXN, Api.ADD_OFFSETS_TO_TXN, Api.TXN_OFFSET_COMMIT, Api.END_TXN]


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
def test_a_request_that_does_not_arrive_until_the_broker_has_given_the_transaction_up(wired: Wired, api: Api) -> None:
    _break(wired, Line(swallowed=frozenset({api})), api)


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
def test_a_request_whose_answer_is_lost(wired: Wired, api: Api) -> None:
    _break(wired, Line(unanswered=frozenset({api})), api)


def _break(wired: Wired, line: Line, api: Api) -> None:
    seed = draw_seed()
    sidecar = wired.start()
    with wired.flow(seed) as events:
        sidecar.wait_for("step closed")
        wired.proxy.change(CLIENT, line)
        wait_until(lambda: wired.proxy.swallowed[api], f"{api.name} is asked")
        wired.deployed.committed(is_stable=True)  # waits until the transaction has ended, one way or the other
        wired.proxy.change(CLIENT, Line())
        wired.proxy.reset(CLIENT)
        sidecar.wait_for("step closed", len(sidecar.said("step closed")) + 5, 60)
        events.finish()
    got = assert_exact(wired.deployed, settle(wired.deployed))
    assert len(got.on_time) > 5
    assert sidecar.exit_code is None

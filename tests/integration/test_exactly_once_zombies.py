"""A replica that was taken for dead and wakes up, and two under one identity: only one publishes, and exactly.

A zombie is frozen (SIGSTOP) under traffic, anywhere or in the middle of a transaction, past its session and transaction
timeouts, and goes on once its replacement has taken over.
"""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer

from support.brokers import Broker
from support.oracle import Ledger, published, settle_exact
from support.proxy import Api, Line, Proxy
from support.sidecar_process import Deployment, SidecarProcess, Stumble, deployment
from support.traffic import Flow, Traffic, draw_seed
from support.waiting import wait_until

pytestmark = pytest.mark.chaos

SETTINGS: dict[str, Any] = {
    "session_timeout": 6,
    "transaction_timeout": 2,
    "commit_interval": 0.2,
    "close_grace": 1,
}
FENCED = 4
STEPS = 16
"""So many must have closed, or exactness would be shown of next to nothing."""


def flow(deployed: Deployment, seed: int) -> Flow:
    return Flow(deployed.bootstrap, deployed.input_topic, Traffic(seed, samples=40), records_per_second=300)


def wait_until_it_has_all(sidecar: SidecarProcess, partitions: int) -> None:
    def has_all() -> bool:
        given = [line["partitions"].split(",") for line in sidecar.said("partitions assigned")]
        return len({place.split("@")[0] for places in given for place in places}) == partitions

    wait_until(has_all, f"{sidecar.name} has all partitions")


def check_exact(deployed: Deployment, ledger: Ledger) -> None:
    got = settle_exact(deployed, ledger)
    assert len(got.on_time) >= STEPS


def assert_fenced(sidecar: SidecarProcess, *names: str) -> None:
    """It ended by itself, and its last words name what it shares with another and what to set."""
    assert sidecar.wait_until_ended(60) == FENCED, sidecar.told()
    errors = [line for line in sidecar.log() if line["level"] == "error"]
    assert len(errors) == 1
    for name in ("another live replica", "--instance-id", *names):
        assert name in errors[0]["message"]


WHERE = {
    "anywhere": None,
    # It wakes into a commit that the group refuses, before its client knows that it has lost its partitions.
    "before a transaction": Stumble("before_begin", 6, signal.SIGSTOP),
    "in a transaction": Stumble("after_offsets", 6, signal.SIGSTOP),
}


@pytest.mark.parametrize("where", WHERE)
def test_a_zombie_of_another_id_rejoins_clean(broker: Broker, tmp_path: Path, where: str) -> None:
    seed = draw_seed()
    with deployment(broker.bootstrap, tmp_path, **SETTINGS) as deployed:
        ledger = Ledger(deployed)
        stumble = WHERE[where]
        zombie = deployed.start("zombie", stumble, host="host-a")
        with flow(deployed, seed) as events:
            zombie.wait_for("step closed")
            heir = deployed.start("heir", host="host-b")
            if stumble is None:
                heir.wait_for("started")
                zombie.freeze()
            zombie.wait_until_frozen()
            wait_until_it_has_all(heir, deployed.partitions)  # so its session is over, and its transaction too
            closed = len(heir.said("step closed"))
            heir.wait_for("step closed", max(closed + 3, STEPS))
            ledger.look()
            before = zombie.log()
            zombie.thaw()
            wait_until(lambda: len(zombie.log()) > len(before), "the zombie says something")
            wait_until(lambda: zombie.exit_code is not None or _has_rejoined(zombie, len(before)), "it ends or rejoins")
            events.finish()
        check_exact(deployed, ledger)
        if zombie.exit_code is None:
            assert zombie.terminate() == 0
        assert zombie.exit_code in (0, FENCED)
        assert heir.terminate() == 0


def _has_rejoined(zombie: SidecarProcess, lines: int) -> bool:
    return any(line["message"] == "partitions assigned" for line in zombie.log()[lines:])


@pytest.mark.parametrize("where", ["anywhere", "in a transaction"])
def test_a_zombie_of_the_same_id_ends_with_exit_code_4(broker: Broker, tmp_path: Path, where: str) -> None:
    seed = draw_seed()
    with deployment(broker.bootstrap, tmp_path, instance_id="a", **SETTINGS) as deployed:
        ledger = Ledger(deployed)
        stumble = WHERE[where]
        zombie = deployed.start("zombie", stumble)
        with flow(deployed, seed) as events:
            zombie.wait_for("step closed")
            if stumble is None:
                zombie.freeze()
            zombie.wait_until_frozen()
            heir = deployed.start("heir")
            wait_until_it_has_all(heir, deployed.partitions)
            # Past both timeouts; nothing that could be waited on shows that they are over.
            threading.Event().wait(SETTINGS["session_timeout"] + 1)
            ledger.look()
            zombie.thaw()
            assert_fenced(zombie, "a")
            heir.wait_for("step closed", max(len(heir.said("step closed")) + 3, STEPS))
            events.finish()
        check_exact(deployed, ledger)
        assert heir.terminate() == 0


def test_a_zombie_that_wakes_before_its_session_ends_goes_on(broker: Broker, tmp_path: Path) -> None:
    """Its transaction has timed out in the broker, but nobody has taken over: it begins anew by itself."""
    seed = draw_seed()
    with deployment(broker.bootstrap, tmp_path, **SETTINGS | {"session_timeout": 40}) as deployed:
        ledger = Ledger(deployed)
        zombie = deployed.start("zombie", Stumble("after_offsets", 6, signal.SIGSTOP), host="host-a")
        with flow(deployed, seed) as events:
            zombie.wait_until_frozen()
            # The broker looks for transactions that are too old every 10 s; then the offsets are stable again.
            deployed.committed(is_stable=True)
            zombie.thaw()
            zombie.wait_for("beginning anew")
            zombie.wait_for("started", 2)
            zombie.wait_for("step closed", STEPS)
            events.finish()
        check_exact(deployed, ledger)
        assert zombie.terminate() == 0


def test_the_second_of_two_with_one_instance_id_takes_over_and_the_first_says_why_it_ends(
    broker: Broker, tmp_path: Path
) -> None:
    seed = draw_seed()
    with deployment(broker.bootstrap, tmp_path, instance_id="only-one", **SETTINGS) as deployed:
        ledger = Ledger(deployed)
        first = deployed.start("first")
        with flow(deployed, seed) as events:
            first.wait_for("step closed")
            second = deployed.start("second")
            assert_fenced(first, "only-one")
            second.wait_for("step closed", STEPS)
            events.finish()
        check_exact(deployed, ledger)
        assert second.terminate() == 0


def test_without_traffic_too_the_first_of_two_with_one_instance_id_ends(broker: Broker, tmp_path: Path) -> None:
    with deployment(broker.bootstrap, tmp_path, instance_id="only-one", **SETTINGS) as deployed:
        first = deployed.start("first")
        first.wait_for("partitions assigned")
        second = deployed.start("second")
        assert_fenced(first, "only-one")
        wait_until_it_has_all(second, deployed.partitions)
        assert second.terminate() == 0
        assert not published(deployed).on_time


@pytest.mark.parametrize("has_traffic", [True, False])
def test_a_member_fenced_by_no_replica_begins_anew(broker: Broker, tmp_path: Path, has_traffic: bool) -> None:
    """As by a join of its own that the network delivered late: nobody has taken its transactional id over."""
    seed = draw_seed()
    with deployment(broker.bootstrap, tmp_path, instance_id="alone", **SETTINGS) as deployed:
        ledger = Ledger(deployed)
        sidecar = deployed.start("sidecar")
        with flow(deployed, seed) as events:
            sidecar.wait_for("step closed", STEPS)
            if not has_traffic:
                events.finish()
                deployed.wait_until_all_is_committed()
            _join_and_be_silent(deployed, "alone")
            sidecar.wait_for("beginning anew from the committed offsets")
            sidecar.wait_for("started", 2)
            if has_traffic:
                events.finish()
        check_exact(deployed, ledger)
        assert sidecar.terminate() == 0


def test_a_member_fenced_by_no_replica_begins_anew_also_where_nobody_tells_it_so(
    stoppable_broker: Broker, tmp_path: Path
) -> None:
    """The coordinator of its transactions is silent until its producer is of no use: what is left is time."""
    seed = draw_seed()
    with (
        Proxy(stoppable_broker.proxied_bootstrap, stoppable_broker.proxy_target) as proxy,
        deployment(stoppable_broker.bootstrap, tmp_path, instance_id="alone", **SETTINGS) as deployed,
    ):
        ledger = Ledger(deployed)
        sidecar = deployed.start(
            "sidecar", bootstrap_servers=stoppable_broker.proxied_bootstrap, kafka_config="client.id=it"
        )
        with flow(deployed, seed) as events:
            sidecar.wait_for("step closed", STEPS)
            events.finish()
        deployed.wait_until_all_is_committed()
        proxy.change("it", Line(swallowed=frozenset({Api.ADD_OFFSETS_TO_TXN})))
        _join_and_be_silent(deployed, "alone")
        sidecar.wait_for("the group has another member under my instance id")
        proxy.change("it", Line())
        sidecar.wait_for("started", 2)
        check_exact(deployed, ledger)
        assert sidecar.terminate() == 0


def _join_and_be_silent(deployed: Deployment, instance_id: str) -> None:
    """The group has a member with this instance id that says nothing any more."""
    ghost = Consumer(
        {
            "bootstrap.servers": deployed.bootstrap,
            "group.id": deployed.group,
            "group.instance.id": instance_id,
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": 6_000,
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    joined = threading.Event()
    ghost.subscribe([deployed.input_topic], on_assign=lambda *_: joined.set())
    wait_until(lambda: ghost.poll(0.1) is None and joined.is_set(), "the ghost has joined")
    ghost.close()  # which leaves a static member in the group


def test_two_on_one_host_without_instance_ids_leave_one_and_the_other_names_what_to_set(
    broker: Broker, tmp_path: Path
) -> None:
    seed = draw_seed()
    with deployment(broker.bootstrap, tmp_path, **SETTINGS) as deployed:
        ledger = Ledger(deployed)
        pair = [deployed.start("first", host="same-host"), deployed.start("second", host="same-host")]
        with flow(deployed, seed) as events:
            wait_until(lambda: any(one.exit_code is not None for one in pair), "one of them ends")
            (loser,) = (one for one in pair if one.exit_code is not None)
            (winner,) = (one for one in pair if one is not loser)
            assert_fenced(loser, "same-host")
            wait_until_it_has_all(winner, deployed.partitions)
            winner.wait_for("step closed", STEPS)
            events.finish()
        check_exact(deployed, ledger)
        assert winner.terminate() == 0

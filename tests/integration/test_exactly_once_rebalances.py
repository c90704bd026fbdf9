"""Replicas join and leave while samples flow: every step comes out once and exact, and what stays isn't rebuilt.

Replicas without an instance id have host names of their own here, as in containers.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from support.brokers import Broker
from support.operations import Operated
from support.oracle import Ledger, assert_exact, settle, settle_exact
from support.sidecar_process import Deployment, SidecarProcess, deployment
from support.topics import create_topic
from support.traffic import Flow, Traffic, draw_seed
from support.waiting import wait_until

pytestmark = pytest.mark.chaos

PARTITIONS = 6
SETTINGS: dict[str, Any] = {
    "session_timeout": 6,
    "transaction_timeout": 3,
    "commit_interval": 0.2,
    "close_grace": 1,
}


def owned(sidecar: SidecarProcess) -> set[int]:
    """Returns the partitions that a replica has by its own log, checking that it gets none twice and loses none twice.

    In a cooperative rebalance a partition that stays is in no line: not assigned again, it isn't restored again.
    """
    has: set[int] = set()
    for line in sidecar.log():
        if line["message"] == "partitions assigned":
            got = {int(place.split("@")[0]) for place in line["partitions"].split(",")}
            if sidecar.settings["assignment"] == "eager":
                has = set()
            assert not got & has, f"{sidecar.name} was given {got} while it had {has}"
            has |= got
        elif line["message"] in ("partitions revoked", "partitions lost"):
            gone = {int(place) for place in line["partitions"].split(",")}
            assert gone <= has, f"{sidecar.name} lost {gone} while it had {has}"
            has -= gone
        elif line["message"].startswith("beginning anew"):  # on a busy machine a transaction may take too long
            has = set()
    return has


def times_restored(sidecar: SidecarProcess, partition: int) -> int:
    return sum(line["partition"] == partition for line in sidecar.said("partition restored"))


def wait_until_shared(deployed: Deployment, *sidecars: SidecarProcess) -> None:
    """Each of them has partitions, together all, each once."""

    def is_shared() -> bool:
        for one in sidecars:
            assert one.exit_code is None, f"{one.name} ended with {one.exit_code}:\n{one.told()}"
        shares = [owned(one) for one in sidecars]
        return all(shares) and sorted(place for share in shares for place in share) == list(range(deployed.partitions))

    wait_until(is_shared, f"{', '.join(one.name for one in sidecars)} share the partitions", 40)


@pytest.mark.parametrize("assignment", ["cooperative", "eager"])
def test_replicas_that_come_and_go_under_traffic_publish_every_step_once(
    broker: Broker, tmp_path: Path, assignment: str
) -> None:
    seed = draw_seed()
    with deployment(broker.bootstrap, tmp_path, PARTITIONS, assignment=assignment, **SETTINGS) as deployed:
        ledger = Ledger(deployed)
        first = deployed.start("first", host="host-1")
        traffic = Traffic(seed, runs=9, partitions=PARTITIONS, samples=60)
        with Flow(broker.bootstrap, deployed.input_topic, traffic, records_per_second=300) as flow:
            wait_until_shared(deployed, first)
            first.wait_for("step closed", 5)
            second = deployed.start("second", host="host-2")
            wait_until_shared(deployed, first, second)
            ledger.look()
            third = deployed.start("third", host="host-3")
            wait_until_shared(deployed, first, second, third)
            third.wait_for("step closed")
            ledger.look()
            kept = owned(first)
            assert second.terminate() == 0  # leaves the group: no session timeout to wait for
            wait_until_shared(deployed, first, third)
            ledger.look()
            third.kill()
            wait_until_shared(deployed, first)
            ledger.look()
            assert owned(first) >= kept
            fourth = deployed.start("fourth", host="host-4")
            wait_until_shared(deployed, first, fourth)
            fourth.wait_for("step closed")
            flow.finish()
        got = settle_exact(deployed, ledger)
        assert len(got.on_time) > 30
        if assignment == "cooperative":
            # What the first replica had all the time was given to it once, and never rebuilt.
            stayed = [place for place in kept if _times_given(first, place) == 1]
            assert stayed, "nothing stayed with the first replica"
            assert not any(times_restored(first, place) for place in stayed)
        assert [one.terminate() for one in (first, fourth)] == [0, 0]


@pytest.mark.parametrize("assignment", ["cooperative", "eager"])
def test_a_storm_of_rebalances_publishes_every_step_once(broker: Broker, tmp_path: Path, assignment: str) -> None:
    """Replicas start and end without waiting for the group, so that rebalances meet restores and each other."""
    seed = draw_seed()
    rng = random.Random(seed)
    with deployment(broker.bootstrap, tmp_path, PARTITIONS, assignment=assignment, **SETTINGS) as deployed:
        ledger = Ledger(deployed)
        alive = [deployed.start("first", host="host-0")]
        traffic = Traffic(seed, runs=9, partitions=PARTITIONS, samples=60)
        with Flow(broker.bootstrap, deployed.input_topic, traffic, records_per_second=300) as flow:
            alive[0].wait_for("step closed")
            for number in range(1, 7):
                alive.append(deployed.start(host=f"host-{number}"))
                alive[-1].wait_for("started")
                if len(alive) > 2:
                    leaving = alive.pop(rng.randrange(len(alive)))
                    assert leaving.terminate() == 0
                ledger.note_offsets()
            wait_until_shared(deployed, *alive)
            flow.finish()
        settle_exact(deployed, ledger)


def test_eight_replicas_that_start_one_after_the_other_settle_though_one_is_slow_to_go(
    broker: Broker, tmp_path: Path
) -> None:
    with deployment(broker.bootstrap, tmp_path, 8, assignment="cooperative", **SETTINGS) as deployed:
        replicas = []
        for number in range(8):
            replicas.append(deployed.start(f"replica-{number}", host=f"host-{number}"))
            threading.Event().wait(0.5)  # that they come while the group is still at it is the point
        wait_until_shared(deployed, *replicas)
        slow = replicas.pop()
        slow.freeze()  # it neither answers the group nor leaves it
        slow.send(signal.SIGTERM)
        replicas[0].kill()
        replicas[0] = deployed.start("replica-0 again", host="host-0")
        wait_until_shared(deployed, *replicas)
        slow.thaw()
        assert slow.wait_until_ended() == 0
        wait_until_shared(deployed, *replicas)
        rebalances = [len(one.said("partitions assigned")) for one in replicas]
        assert max(rebalances) <= 8 + 3, rebalances  # each that came or went moved it once at most
        for one in replicas:
            assert one.terminate() == 0


def test_replicas_of_one_group_that_read_other_topics_leave_each_other_in_peace(broker: Broker, tmp_path: Path) -> None:
    with deployment(broker.bootstrap, tmp_path, 3, assignment="cooperative", **SETTINGS) as deployed:
        first = deployed.start("first", host="host-1")
        second = deployed.start("second", host="host-2", input_topic=create_topic(broker.bootstrap, "other", 3))
        wait_until(lambda: all(len(owned(one)) == 3 for one in (first, second)), "each has its topic", 40)
        before = [_cpu_seconds(one) for one in (first, second)]
        threading.Event().wait(5)  # a client that spins would spend all of it
        for one, seconds in zip((first, second), before, strict=True):
            assert _cpu_seconds(one) - seconds < 2.5
            assert one.terminate() == 0


def test_partitions_that_move_while_nothing_can_be_written_go_on_afterwards_wherever_they_are(
    broker: Broker, tmp_path: Path
) -> None:
    seed = draw_seed()
    with deployment(broker.bootstrap, tmp_path, PARTITIONS, assignment="cooperative", **SETTINGS) as deployed:
        operated, output = Operated(deployed), deployed.output_topic
        first = deployed.start("first", host="host-1")
        traffic = Traffic(seed, runs=9, partitions=PARTITIONS, samples=60)
        with Flow(broker.bootstrap, deployed.input_topic, traffic, records_per_second=300) as flow:
            first.wait_for("step closed")
            operated.set_topic_config(output, "max.message.bytes", "100")  # no result fits
            first.wait_for("a transaction was aborted")
            second = deployed.start("second", host="host-2")
            wait_until_shared(deployed, first, second)
            second.wait_for("a transaction was aborted")
            assert second.terminate() == 0
            wait_until_shared(deployed, first)  # it has again what it had, and had paused
            second = deployed.start("second again", host="host-2")
            wait_until_shared(deployed, first, second)
            operated.set_topic_config(output, "max.message.bytes", "1000000")
            for one in (first, second):
                one.wait_for("step closed", len(one.said("step closed")) + 10)
            flow.finish()
        assert_exact(deployed, settle(deployed))


def test_a_static_member_that_restarts_in_time_moves_no_partition(broker: Broker, tmp_path: Path) -> None:
    seed = draw_seed()
    with deployment(broker.bootstrap, tmp_path, PARTITIONS, assignment="cooperative", **SETTINGS) as deployed:
        first = deployed.start("first", instance_id="a")
        second = deployed.start("second", instance_id="b")
        traffic = Traffic(seed, runs=9, partitions=PARTITIONS, samples=60)
        with Flow(broker.bootstrap, deployed.input_topic, traffic, records_per_second=300) as flow:
            wait_until_shared(deployed, first, second)
            kept, moved = owned(first), owned(second)
            lines = len(first.said("partitions "))
            for end in (second.terminate, second.kill):
                second.wait_for("step closed")
                end()
                second = deployed.start("second again", instance_id="b")
                wait_until_shared(deployed, first, second)
                assert (owned(first), owned(second)) == (kept, moved)
            assert len(first.said("partitions ")) == lines, "the first replica was given or taken partitions"
            flow.finish()
        assert_exact(deployed, settle(deployed))


def _cpu_seconds(sidecar: SidecarProcess) -> float:
    fields = Path(f"/proc/{sidecar.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _times_given(sidecar: SidecarProcess, partition: int) -> int:
    return sum(
        partition in {int(place.split("@")[0]) for place in line["partitions"].split(",")}
        for line in sidecar.said("partitions assigned")
    )

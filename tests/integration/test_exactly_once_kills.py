"""`kill -9` of the real process, wherever it may be: every step comes out once and exact, and no offset goes back.

KILLS sets another number of random kills for each of the two kinds of settings, SEED what is drawn.
"""

from __future__ import annotations

import json
import os
import random
import threading
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from support.brokers import Broker
from support.oracle import Ledger, assert_exact, dumped, published, replayed, settle, settle_exact
from support.sidecar_process import POINTS, Deployment, SidecarProcess, Stumble, deployment
from support.topics import NewRecord, produce, produce_transaction, unique_name
from support.traffic import Flow, Traffic, draw_seed
from support.waiting import wait_until

pytestmark = pytest.mark.chaos

KILLS = int(os.environ.get("KILLS", "15"))

QUICK: dict[str, Any] = {
    "instance_id": "a",  # a static member: its replacement takes over at once
    "session_timeout": 6,
    "transaction_timeout": 3,
    "commit_interval": 0.2,
    "close_grace": 1,
}
BOUNDS: dict[str, Any] = {
    "plain": {},
    # Windows evicted, runs dropped, floors forgotten: what is in memory then depends on all of the log.
    "tight": {"max_samples": 60, "max_runs": 2, "remember_records": 300, "remember_steps": 1},
}


@pytest.mark.parametrize("bounds", BOUNDS)
def test_killed_at_random_points_under_traffic_it_publishes_every_step_once(
    broker: Broker, tmp_path: Path, bounds: str
) -> None:
    seed = draw_seed()
    rng = random.Random(seed)
    with deployment(broker.bootstrap, tmp_path, **QUICK, **BOUNDS[bounds]) as deployed:
        ledger = Ledger(deployed)
        sidecar = deployed.start()
        sidecar.wait_for("started")
        with Flow(broker.bootstrap, deployed.input_topic, Traffic(seed, samples=40)) as flow:
            for number in range(KILLS):
                moment = rng.choice(["starting", "restoring", "restoring", "result", "result", "later"])
                _kill(sidecar, moment, rng)
                ledger.note_offsets()
                sidecar = deployed.start()
                if number % 4 == 3:
                    sidecar.wait_for("partitions assigned")
                    ledger.look()
            flow.finish()
        log = settle(deployed)
        ledger.look()
        got = assert_exact(deployed, log, has_bounds=bounds == "tight")
        want = replayed(deployed, log)
        ledger.assert_atomic(want)
        assert len(got.on_time) > 2 * KILLS
        assert got.corrections and got.dead_letters
        _kill_while_idle(deployed, sidecar, ledger)
        assert dumped(deployed).read_bytes() == log.read_bytes(), "an idle sidecar wrote into its input"
        assert_exact(deployed, log, has_bounds=bounds == "tight")
        assert published(deployed) == got
        ledger.assert_atomic(want)


def _kill(sidecar: SidecarProcess, moment: str, rng: random.Random) -> None:
    """Waits for a moment, and a little at random, and kills it."""
    if moment in ("restoring", "result", "later"):
        sidecar.wait_for("partitions assigned")
    if moment == "result":
        sidecar.wait_for("step ", len(sidecar.said("step ")) + 1)
    seconds = {"starting": 0.8, "restoring": 0.06, "result": 0.02, "later": 1.0}[moment] * rng.random()
    threading.Event().wait(seconds)  # no condition to wait on: the point is to hit any moment
    sidecar.kill()


def _kill_while_idle(deployed: Deployment, sidecar: SidecarProcess, ledger: Ledger) -> None:
    before = deployed.committed()
    for _ in range(2):
        sidecar.kill()
        sidecar = deployed.start()
        sidecar.wait_for("partitions assigned")
        ledger.look()
    assert sidecar.terminate() == 0
    assert deployed.committed() == before


@pytest.mark.parametrize("point", POINTS)
def test_killed_at_an_exact_point_it_publishes_every_step_once(broker: Broker, tmp_path: Path, point: str) -> None:
    seed = draw_seed()
    rng = random.Random(seed)
    with deployment(broker.bootstrap, tmp_path, **QUICK) as deployed:
        ledger = Ledger(deployed)
        with Flow(broker.bootstrap, deployed.input_topic, Traffic(seed, samples=40)) as flow:
            deployed.start().wait_for("step closed")
            deployed.processes[-1].kill()
            for _ in range(2):
                # How many partitions there are to restore, and in how many batches, isn't known: one is sure.
                how_often = 1 if point == "restoring" else rng.randrange(1, 4)
                sidecar = deployed.start(stumble=Stumble(point, how_often))
                assert sidecar.wait_until_ended() == -9
                ledger.note_offsets()
            sidecar = deployed.start()
            sidecar.wait_for("step closed")
            flow.finish()
        settle_exact(deployed, ledger)


def test_killed_ten_times_in_a_row_it_becomes_ready_the_eleventh_time(broker: Broker, tmp_path: Path) -> None:
    """Each leaves a transaction open, which the next has to end before its own."""
    seed = draw_seed()
    with deployment(broker.bootstrap, tmp_path, **QUICK) as deployed:
        deployed.start().wait_for("started")
        with Flow(broker.bootstrap, deployed.input_topic, Traffic(seed, samples=40)) as flow:
            for _ in range(10):
                deployed.processes[-1].kill()
                victim = deployed.start(stumble=Stumble("after_offsets"))
                assert victim.wait_until_ended() == -9
            sidecar = deployed.start()
            sidecar.wait_for("step closed")
            flow.finish()
        assert len(sidecar.said("waiting for the transaction coordinator")) <= 1
        assert_exact(deployed, settle(deployed))


def test_a_single_sample_committed_before_a_kill_is_counted_after_it(broker: Broker, tmp_path: Path) -> None:
    with deployment(broker.bootstrap, tmp_path, 1, **QUICK) as deployed:
        sidecar = deployed.start()
        produce(broker.bootstrap, deployed.input_topic, [_sample("r", 0, 1.0)])
        wait_until(lambda: deployed.committed() == {0: 1}, "the sample is committed")
        sidecar.kill()
        sidecar = deployed.start()
        restored = sidecar.wait_for("partition restored")
        assert (restored["replayed"], restored["windows"], restored["samples"]) == (1, 1, 1)
        produce(broker.bootstrap, deployed.input_topic, [_close("r", 0)])
        sidecar.wait_for("step closed")
        got = assert_exact(deployed, settle(deployed))
        assert [_numbers(value) for _, value in got.on_time] == [("r", 0, 1, 1.0)]


def test_a_crash_between_offsets_and_commit_is_taken_over_at_once(broker: Broker, tmp_path: Path) -> None:
    """The predecessor's transaction would stay open for minutes; the shared identity ends it."""
    with deployment(broker.bootstrap, tmp_path, 1, **QUICK) as deployed:
        sidecar = deployed.start()
        produce(broker.bootstrap, deployed.input_topic, [_sample("r", 0, 1.0), _sample("r", 0, 0.0)])
        wait_until(lambda: deployed.committed() == {0: 2}, "the samples are committed")
        sidecar.kill()
        config = {"bootstrap.servers": broker.bootstrap, "log_level": 0}
        crashed = Producer({**config, "transactional.id": f"{deployed.group}-a", "transaction.timeout.ms": 300_000})
        member = Consumer({**config, "group.id": deployed.group})
        crashed.init_transactions(30)
        crashed.begin_transaction()
        crashed.produce(deployed.output_topic, b"never to be seen", key=b"k")
        crashed.flush(30)
        crashed.send_offsets_to_transaction(
            [TopicPartition(deployed.input_topic, 0, 77)], member.consumer_group_metadata(), 30
        )
        produce(broker.bootstrap, deployed.input_topic, [_close("r", 0)])
        sidecar = deployed.start()
        sidecar.wait_for("step closed")
        got = assert_exact(deployed, settle(deployed))
        assert [_numbers(value) for _, value in got.on_time] == [("r", 0, 2, 0.5)]
        assert deployed.committed(is_stable=True) == {0: 3}
        member.close()


def test_aborted_input_is_never_counted_and_control_records_are_passed(broker: Broker, tmp_path: Path) -> None:
    def transact(*records: NewRecord, commit: bool) -> None:
        produce_transaction(broker.bootstrap, deployed.input_topic, records, commit=commit)

    with deployment(broker.bootstrap, tmp_path, 1, **QUICK) as deployed:
        sidecar = deployed.start()
        transact(_sample("r", 0, 1.0), commit=True)  # offset 0, control record 1
        transact(_sample("r", 0, 100.0), _close("r", 0), commit=False)  # 2, 3, control record 4
        wait_until(lambda: deployed.committed() == {0: 5}, "the offset behind the control records is committed")
        sidecar.kill()
        sidecar = deployed.start()
        transact(_sample("r", 0, 0.0), commit=True)
        transact(_sample("r", 0, 100.0), commit=False)
        sidecar.kill()
        sidecar = deployed.start()
        transact(_close("r", 0, expected_samples=2), commit=True)
        sidecar.wait_for("step closed")
        got = assert_exact(deployed, settle(deployed))
        assert [_numbers(value) for _, value in got.on_time] == [("r", 0, 2, 0.5)]


def test_killed_while_trainers_write_in_transactions_it_publishes_every_step_once(
    broker: Broker, tmp_path: Path
) -> None:
    seed = draw_seed()
    rng = random.Random(seed)
    with deployment(broker.bootstrap, tmp_path, **QUICK) as deployed:
        ledger = Ledger(deployed)
        sidecar = deployed.start()
        traffic = Traffic(seed, samples=40)
        with Flow(broker.bootstrap, deployed.input_topic, traffic, transactional_id=unique_name("trainer")) as flow:
            for _ in range(4):
                _kill(sidecar, "result", rng)
                ledger.note_offsets()
                sidecar = deployed.start()
            sidecar.wait_for("step closed")
            flow.finish()
        settle_exact(deployed, ledger)


def _sample(run_id: str, step: int, reward: float) -> NewRecord:
    event = {"type": "sample", "run_id": run_id, "step": step, "reward": reward}
    return NewRecord(json.dumps(event).encode(), key=run_id.encode())


def _close(run_id: str, step: int, **fields: Any) -> NewRecord:
    event = {"type": "close", "run_id": run_id, "step": step, **fields}
    return NewRecord(json.dumps(event).encode(), key=run_id.encode())


def _numbers(value: bytes) -> tuple[str, int, int, float]:
    result = json.loads(value)
    metrics = result["metrics"]
    return (
        result["run_id"],
        result["step"],
        metrics["rollout/num_training_samples"],
        metrics["rollout/episode_raw_reward"],
    )

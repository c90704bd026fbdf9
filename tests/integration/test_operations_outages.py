"""A broker that goes away in the middle of traffic: red probes meanwhile, and exact afterwards with no manual step."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from stream_metrics.events import StepMetrics, encode
from stream_metrics.testing import MemoryLog, close, sample
from support.brokers import Broker
from support.operations import Operated, operated
from support.proxy import Line, Proxy
from support.topics import produce_transaction, read_topic, unique_name
from support.traffic import Flow, Traffic


def _expected(sidecar: Operated) -> dict[bytes, StepMetrics]:
    """Returns the newest result of each step, folded in memory from the input topic as it is now."""
    log = MemoryLog(topic=sidecar.deployment.input_topic)
    for read in read_topic(sidecar.bootstrap, sidecar.deployment.input_topic):
        gap = read.offset - log.next_offset if log.records else read.offset
        log.append(read.value, headers=list(read.headers), unix_ms=read.timestamp_ms, key=read.key, skip_offsets=gap)
    return {one.key(): one for one in log.fold().results}


def _assert_exact(sidecar: Operated) -> None:
    """The newest result of each step is right to the byte, and each step and attempt had one on-time result."""
    results = sidecar.results()
    newest = {one.key(): encode(one) for one in results}
    assert newest == {key: encode(one) for key, one in _expected(sidecar).items()}
    on_time = [(one.key(), one.attempt) for one in results if not one.correction]
    assert len(on_time) == len(set(on_time))
    assert len(newest) > 5


TIMEOUTS: dict[str, Any] = {
    "session_timeout": 6,
    "transaction_timeout": 4,
    "kafka_config": "socket.timeout.ms=4000",
}
OUTAGES = {"a moment": 0.0, "longer than every timeout": 15.0}
"""Seconds beyond being not ready. The longer one is past all of TIMEOUTS and the client's longest pause between two
tries to connect, which is 10 s: in minutes nothing more would happen."""


@pytest.mark.chaos
@pytest.mark.parametrize("outage", OUTAGES)
@pytest.mark.parametrize("how", ["kill", "pause"])
def test_a_broker_that_was_away_under_load_is_gone_on_from_by_itself(
    stoppable_broker: Broker, tmp_path: Path, how: str, outage: str
) -> None:
    with operated(stoppable_broker.bootstrap, tmp_path, **TIMEOUTS) as sidecar:
        sidecar.start_ready()
        sidecar.wait_until(lambda: sidecar.get("/readyz")[0] == 200, "ready")
        topic = sidecar.deployment.input_topic
        with Flow(sidecar.bootstrap, topic, Traffic(3, runs=3, partitions=1), 500) as flow:
            sidecar.wait_until(lambda: sidecar.metric("results_total") > 3, "some results")
            getattr(stoppable_broker, how)()
            sidecar.wait_until(lambda: sidecar.get("/readyz")[0] == 503, "not ready")
            threading.Event().wait(OUTAGES[outage])  # nothing that could be waited on shows that all of it is over
            assert sidecar.get("/readyz")[0] == 503
            assert sidecar.get("/healthz")[0] == 200  # a restart of the process would help nothing
            stoppable_broker.start()
            sidecar.wait_until(lambda: sidecar.get("/readyz")[0] == 200, "ready again")
            flow.finish()
        sidecar.wait_until_read()
        _assert_exact(sidecar)
        assert sidecar.process.exit_code is None


@pytest.mark.chaos
def test_a_broker_that_falls_silent_without_hanging_up_makes_an_idle_sidecar_not_ready(
    stoppable_broker: Broker, tmp_path: Path
) -> None:
    with (
        Proxy(stoppable_broker.proxied_bootstrap, stoppable_broker.proxy_target) as proxy,
        operated(stoppable_broker.bootstrap, tmp_path) as sidecar,
    ):
        # The client itself would notice by these, which take longer than this test.
        patience = {
            "session_timeout": 300,
            "transaction_timeout": 290,
            "kafka_config": ["client.id=it", "socket.timeout.ms=280000"],
        }
        sidecar.start_ready(bootstrap_servers=stoppable_broker.proxied_bootstrap, **patience)
        sidecar.wait_until(lambda: sidecar.get("/readyz")[0] == 200, "ready")
        sidecar.wait_until(lambda: sidecar.deployment.committed(is_stable=True)[0] == 0, "its only commit")
        proxy.change("it", Line(is_held=True))
        sidecar.wait_until(lambda: sidecar.get("/readyz")[0] == 503, "not ready")
        assert json.loads(sidecar.get("/readyz")[1])["reason"] == "the broker is away"
        proxy.change("it", Line())
        sidecar.wait_until(lambda: sidecar.get("/readyz")[0] == 200, "ready again")
        sidecar.send(sample(1, 1.0), close(1))
        sidecar.wait_for_results(1)


def test_while_the_output_topic_takes_nothing_reading_stops_and_the_lag_shows(broker: Broker, tmp_path: Path) -> None:
    with operated(broker.bootstrap, tmp_path) as sidecar:
        output = sidecar.deployment.output_topic
        sidecar.start_ready()
        sidecar.wait_until(lambda: sidecar.get("/readyz")[0] == 200, "ready")
        sidecar.set_topic_config(output, "max.message.bytes", "100")
        sidecar.send(sample(1, 1.0), close(1))
        line = sidecar.process.wait_for("a result is larger than the output topic takes")
        assert (line["level"], line["topic"]) == ("error", output)
        sidecar.wait_until(lambda: "transactions fail" in sidecar.get("/readyz")[1], "not ready, and why")
        sidecar.send(*[sample(2, 1.0)] * 20_000, close(2))
        sidecar.wait_until(lambda: sidecar.metric("consumer_lag") >= 20_000, "a lag")
        assert sidecar.metric("held_samples") <= 1  # what waits, waits in the log
        assert sidecar.get("/healthz")[0] == 200
        sidecar.set_topic_config(output, "max.message.bytes", "1000000")
        first, second = sidecar.wait_for_results(2)
        assert [one.metrics["rollout/num_training_samples"] for one in (first, second)] == [1, 20_000]
        sidecar.wait_until(lambda: sidecar.metric("consumer_lag") == 0, "no lag")
        sidecar.wait_until(lambda: sidecar.get("/readyz")[0] == 200, "ready again")
        assert len(sidecar.process.said("a transaction was aborted")) == 1


def test_aborted_data_is_never_counted(broker: Broker, tmp_path: Path) -> None:
    with operated(broker.bootstrap, tmp_path) as sidecar:
        topic = sidecar.deployment.input_topic
        sidecar.start_ready()
        for reward, is_committed in ((1.0, True), (0.0, False), (1.0, True), (0.0, False)):
            value = json.dumps(sample(1, reward)).encode()
            produce_transaction(sidecar.bootstrap, topic, [value] * 3, commit=is_committed)
        sidecar.wait_until_read()  # the markers behind the last record count as read
        sidecar.restart()
        produce_transaction(sidecar.bootstrap, topic, [json.dumps(close(1)).encode()], commit=False)
        sidecar.send(close(1))
        (result,) = sidecar.wait_for_results(1)
        assert result.metrics["rollout/num_training_samples"] == 6
        assert result.metrics["rollout/episode_raw_reward"] == 1.0
        sidecar.wait_until_read()


def test_nothing_above_an_open_transaction_is_published_until_it_ends(broker: Broker, tmp_path: Path) -> None:
    with operated(broker.bootstrap, tmp_path) as sidecar:
        sidecar.start_ready()
        holder = Producer(
            {"bootstrap.servers": sidecar.bootstrap, "transactional.id": unique_name("holder"), "log_level": 0}
        )
        holder.init_transactions(30)
        holder.begin_transaction()
        holder.produce(sidecar.deployment.input_topic, json.dumps(sample(1, 0.0)).encode(), partition=0)
        assert holder.flush(30) == 0
        sidecar.send(sample(1, 1.0), close(1))
        sidecar.send(sample(2, 1.0), close(2), run_id="another")
        # Whatever a read_committed reader may see by now, it has seen: its end is below the open transaction.
        sidecar.wait_until(lambda: sidecar.deployment.committed()[0] == 0, "its position is committed")
        assert sidecar.results() == []
        line = sidecar.process.wait_for("a producer's transaction is open")
        assert (line["level"], line["partition"], line["offset"]) == ("warning", 0, 0)
        assert sidecar.metric("consumer_lag") >= 5
        holder.commit_transaction(30)
        sidecar.wait_for_results(2)
        (result,) = sidecar.results("default")
        assert result.metrics["rollout/num_training_samples"] == 2
        assert result.metrics["rollout/episode_raw_reward"] == 0.5
        sidecar.wait_until_read()
        sidecar.process.wait_for("a partition is read on")
        sidecar.wait_until(lambda: sidecar.metric("consumer_lag") == 0, "no lag")


def test_a_cluster_that_can_keep_no_transactions_is_waited_for_with_its_reason(
    broker_without_transactions: Broker, tmp_path: Path
) -> None:
    with operated(broker_without_transactions.bootstrap, tmp_path) as sidecar:
        sidecar.start()
        line = sidecar.process.wait_for("waiting for the transaction coordinator")
        assert line["level"] == "warning" and line["error"]
        assert sidecar.get("/healthz")[0] == 200
        status, reason = sidecar.get("/readyz")
        assert status == 503 and "waiting for the transaction coordinator" in reason
        assert sidecar.process.terminate() == 0
        assert len(sidecar.process.said("waiting for the transaction coordinator")) == 1

"""SIGTERM and SIGINT end a sidecar with code 0 within its grace time, whatever it is doing; and what it waits for."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer

from stream_metrics.testing import close, sample
from support.brokers import Broker, _free_ports
from support.operations import Operated, operated, record
from support.proxy import Api, Line, Proxy
from support.topics import unique_name
from support.traffic import Flow, Traffic

GRACE_SECONDS = 10.0
"""It takes at most 6; more for a busy machine."""


@pytest.fixture
def sidecar(broker: Broker, tmp_path: Path) -> Iterator[Operated]:
    with operated(broker.bootstrap, tmp_path) as made:
        yield made


def _assert_ends_soon(sidecar: Operated, number: signal.Signals = signal.SIGTERM) -> None:
    began = time.monotonic()
    os.kill(sidecar.process.pid, number)
    code = sidecar.process.wait_until_ended(20)
    took = time.monotonic() - began
    assert code == 0, sidecar.process.told()
    assert took < GRACE_SECONDS, f"took {took:.1f} s\n{sidecar.process.told()}"
    assert sidecar.process.log()[-1]["message"] == "stopped"
    assert sidecar.process.said("stopping")[0]["signal"] == number.name
    assert all(line["level"] in ("info", "warning") for line in sidecar.process.log()), sidecar.process.told()


def test_while_it_waits_for_missing_topics_it_says_which_and_ends_soon(sidecar: Operated) -> None:
    missing = unique_name("missing")
    sidecar.start(input_topic=missing, output_topic=f"{missing}-out")
    line = sidecar.process.wait_for("waiting for missing topics")
    assert line["message"] == (
        f"waiting for missing topics: {missing}, {missing}-out; create them, or run with --create-topics"
    )
    assert sidecar.get("/healthz")[0] == 200
    status, body = sidecar.get("/readyz")
    assert (status, json.loads(body)["reason"]) == (503, line["message"])
    _assert_ends_soon(sidecar)


def test_topics_that_come_later_are_found_and_read(sidecar: Operated) -> None:
    made = sidecar.deployment
    made.input_topic, made.output_topic, made.dead_letter_topic = (unique_name(name) for name in ("in", "out", "dead"))
    sidecar.start()
    sidecar.process.wait_for("waiting for missing topics")
    for topic in (made.input_topic, made.output_topic, made.dead_letter_topic):
        sidecar.make_topic(topic)
    sidecar.process.wait_for("partitions assigned")
    assert len(sidecar.process.said("waiting for missing topics")) <= 3  # once for each set of them
    sidecar.send(sample(1, 1.0), close(1))
    sidecar.wait_for_results(1)
    _assert_ends_soon(sidecar, signal.SIGINT)


def test_missing_topics_are_made_as_they_must_be_where_that_is_wanted(sidecar: Operated) -> None:
    made = sidecar.deployment
    made.input_topic, made.output_topic, made.dead_letter_topic = (unique_name(name) for name in ("in", "out", "dead"))
    sidecar.start_ready(create_topics=True, input_partitions=3)
    created = {line["topic"]: line for line in sidecar.process.said("created topic")}
    assert created[made.input_topic]["partitions"] == 3
    assert created[made.output_topic]["cleanup.policy"] == "compact"
    assert made.dead_letter_topic in created
    sidecar.send(b"poison", sample(1, 1.0), close(1), partition=2)
    sidecar.wait_for_results(1)
    sidecar.wait_for_letters(1)
    _assert_ends_soon(sidecar)


def test_a_broker_that_is_away_at_the_start_is_waited_for_and_does_not_hold_up_the_end(
    broker: Broker, tmp_path: Path
) -> None:
    (nobody,) = _free_ports(1)
    with operated(broker.bootstrap, tmp_path) as sidecar:
        sidecar.start(bootstrap_servers=f"127.0.0.1:{nobody}")
        sidecar.process.wait_for(f"waiting for the broker at 127.0.0.1:{nobody}")
        assert sidecar.get("/healthz")[0] == 200
        status, body = sidecar.get("/readyz")
        assert status == 503 and f"waiting for the broker at 127.0.0.1:{nobody}" in body
        _assert_ends_soon(sidecar)
        assert len(sidecar.process.said("waiting for the broker")) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_sidecar_ends_soon_and_leaves_the_group(sidecar: Operated, number: signal.Signals) -> None:
    sidecar.start_ready()
    sidecar.send(sample(1, 1.0))
    sidecar.wait_until_read()
    _assert_ends_soon(sidecar, number)
    began = time.monotonic()
    sidecar.start_ready()  # at once: nobody waits for a session of 45 s to end
    assert time.monotonic() - began < 20


def test_under_load_what_was_read_is_committed_before_the_end(sidecar: Operated) -> None:
    sidecar.start_ready(commit_interval=600)
    with Flow(sidecar.bootstrap, sidecar.deployment.input_topic, Traffic(1, runs=2, partitions=1), 3_000) as flow:
        sidecar.wait_until(lambda: sidecar.metric("results_total") > 3, "some results")
        _assert_ends_soon(sidecar)
        committed = sidecar.deployment.committed()[0]
        flow.finish()
    assert committed > 0
    before = len(sidecar.results())
    assert before > 3
    sidecar.start_ready()
    sidecar.wait_until_read()
    assert sidecar.process.said("partition restored")[0]["replayed"] <= committed


def test_while_it_restores_it_ends_soon_and_commits_nothing(sidecar: Operated) -> None:
    count = 6_000
    producer = Producer({"bootstrap.servers": sidecar.bootstrap, "batch.num.messages": 1, "linger.ms": 0})
    value = record(sample(1, 1.0)).value
    for _ in range(count):
        producer.produce(sidecar.deployment.input_topic, value)
    assert producer.flush(30) == 0
    sidecar.start_ready()
    sidecar.wait_until_read()
    assert sidecar.process.terminate() == 0
    # A batch a fetch, each after a pause: the restore takes long.
    sidecar.start(kafka_config="fetch.message.max.bytes=1")
    sidecar.process.wait_for("partitions assigned")
    sidecar.wait_until(lambda: sidecar.metric("replayed_records_total") > 0, "some of it")
    assert sidecar.get("/readyz")[0] == 503
    _assert_ends_soon(sidecar)
    assert not sidecar.process.said("partition restored"), "it was too fast for this test"
    assert sidecar.deployment.committed()[0] == count
    sidecar.start_ready()
    sidecar.send(close(1))
    (result,) = sidecar.wait_for_results(1)
    assert result.metrics["rollout/num_training_samples"] == count


SWALLOWED = {
    "who coordinates": (Api.FIND_COORDINATOR, "waiting for the transaction coordinator"),
    "the producer's identity": (Api.INIT_PRODUCER_ID, "waiting for the transaction coordinator"),
    "to join the group": (Api.JOIN_GROUP, "started"),
}


@pytest.mark.parametrize("what", SWALLOWED)
def test_a_question_at_the_start_that_nobody_answers_does_not_hold_up_the_end(
    stoppable_broker: Broker, tmp_path: Path, what: str
) -> None:
    api, said = SWALLOWED[what]
    with _behind_a_proxy(stoppable_broker, tmp_path) as (sidecar, proxy):
        proxy.change("it", Line(swallowed=frozenset({api})))
        sidecar.start(bootstrap_servers=stoppable_broker.proxied_bootstrap, kafka_config="client.id=it")
        sidecar.process.wait_for(said)
        sidecar.wait_until(lambda: proxy.swallowed[api], f"{api.name} is asked")
        assert sidecar.get("/healthz")[0] == 200
        assert sidecar.get("/readyz")[0] == 503
        _assert_ends_soon(sidecar)


@pytest.mark.parametrize(
    "api",
    [Api.ADD_PARTITIONS_TO_TXN, Api.ADD_OFFSETS_TO_TXN, Api.TXN_OFFSET_COMMIT, Api.END_TXN],
    ids=lambda api: api.name,
)
def test_a_step_of_a_transaction_that_nobody_answers_does_not_hold_up_the_end(
    stoppable_broker: Broker, tmp_path: Path, api: Api
) -> None:
    with _behind_a_proxy(stoppable_broker, tmp_path) as (sidecar, proxy):
        sidecar.start_ready(bootstrap_servers=stoppable_broker.proxied_bootstrap, kafka_config="client.id=it")
        sidecar.send(sample(1, 1.0), close(1))
        sidecar.wait_for_results(1)
        proxy.change("it", Line(swallowed=frozenset({api})))
        sidecar.send(sample(2, 1.0), close(2))
        sidecar.wait_until(lambda: proxy.swallowed[api], f"{api.name} is asked")
        _assert_ends_soon(sidecar)
        proxy.change("it", Line())
        sidecar.start_ready()
        sidecar.wait_for_results(2)  # the second once, whatever had become of it
        sidecar.wait_until_read()


@contextmanager
def _behind_a_proxy(broker: Broker, folder: Path) -> Iterator[tuple[Operated, Proxy]]:
    with (
        Proxy(broker.proxied_bootstrap, broker.proxy_target) as proxy,
        operated(broker.bootstrap, folder) as sidecar,
    ):
        yield sidecar, proxy


@pytest.mark.chaos
@pytest.mark.parametrize("how", ["stop", "pause"])
def test_with_the_broker_gone_under_load_it_ends_soon(stoppable_broker: Broker, tmp_path: Path, how: str) -> None:
    with operated(stoppable_broker.bootstrap, tmp_path) as sidecar:
        sidecar.start_ready()
        topic = sidecar.deployment.input_topic
        with Flow(sidecar.bootstrap, topic, Traffic(2, runs=2, partitions=1), 1_000):
            sidecar.wait_until(lambda: sidecar.metric("results_total") > 3, "some results")
            getattr(stoppable_broker, how)()
            _assert_ends_soon(sidecar)
            stoppable_broker.start()
            sidecar.make_topic(unique_name("again"))  # it does what the next test needs

from __future__ import annotations

import time
from typing import Any

import pytest

from stream_metrics.producers.environment import SharedProducer, producer_from_environment


def make(kafka: Any, variables: dict[str, str], **given: Any) -> Any:
    return producer_from_environment(
        {f"STREAM_METRICS_{name}": value for name, value in variables.items()}, connect=kafka.connect, **given
    )


def test_every_variable_reaches_the_producer(kafka: Any, tmp_path: Any) -> None:
    producer = make(
        kafka,
        {
            "INPUT_TOPIC": "t",
            "RUN_ID": "r",
            "ATTEMPT": "4",
            "PRODUCER": "p",
            "PRODUCERS": "3",
            "SPOOL_DIRECTORY": str(tmp_path),
        },
        run_id="other",
        is_only_process=True,
    )
    assert (producer.topic, producer.run_id, producer.attempt) == ("t", "r", 4)
    assert (producer.producer, producer.producers) == ("p", 3)
    assert producer._spool.directory == tmp_path
    producer.close()


def test_the_only_process_of_a_run_takes_its_start_time_as_attempt(kafka: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # A counter would begin again at 0 when the job is submitted anew, below the attempts that were.
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    producer = make(kafka, {}, run_id="r", is_only_process=True)
    assert abs(producer.attempt - time.time() * 1000) < 60_000
    producer.close()


def test_a_run_without_a_name_is_said(kafka: Any, caplog: pytest.LogCaptureFixture) -> None:
    producer = make(kafka, {})
    assert producer.run_id == "default"
    assert "STREAM_METRICS_RUN_ID isn't set" in caplog.text
    producer.close()


@pytest.mark.parametrize("text", ["client.rack=a,linger.ms=7", "client.rack=a\nlinger.ms=7\n"])
def test_client_properties_come_one_a_line_or_with_commas(text: str) -> None:
    producer = producer_from_environment({"STREAM_METRICS_KAFKA_CONFIG": text}, run_id="r", spool_directory="")
    producer.close(0.0)
    with pytest.raises(ValueError, match="librdkafka refuses"):
        producer_from_environment({"STREAM_METRICS_KAFKA_CONFIG": "no.such=1"}, run_id="r", spool_directory="")


@pytest.mark.parametrize(
    "variables", [{"ATTEMPT": "-1"}, {"PRODUCERS": "0"}, {"PRODUCERS": "two"}, {"KAFKA_CONFIG": "linger.ms"}]
)
def test_a_variable_that_makes_no_sense_is_named(kafka: Any, variables: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=next(iter(variables))):
        make(kafka, variables, run_id="r")


def test_a_shared_producer_is_made_once_and_a_failure_said_once(kafka: Any, caplog: pytest.LogCaptureFixture) -> None:
    calls = []

    def fail(**given: Any) -> Any:
        calls.append(given)
        raise ValueError("no such broker")

    shared = SharedProducer(fail)
    assert shared.get(run_id="r") is None
    assert shared.get(run_id="r") is None
    assert len(calls) == 1
    assert caplog.text.count("no such broker") == 1

"""What an operator sees of a sidecar that does its work: probes, metrics, log lines."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from stream_metrics.testing import close, sample
from support.brokers import Broker
from support.operations import Operated, operated


@pytest.fixture(scope="module")
def sidecar(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operated]:
    with operated(broker.bootstrap, tmp_path_factory.mktemp("http")) as made:
        made.start_ready()
        made.send(sample(1, 1.0), sample(1, 0.0), b"poison", None, close(1), run_id="seen")
        made.wait_for_results(1, "seen")
        yield made


def test_the_probes_are_green_and_say_so_in_JSON(sidecar: Operated) -> None:
    sidecar.wait_until(lambda: sidecar.get("/readyz")[0] == 200, "ready")
    for path in ("/healthz", "/readyz"):
        status, body = sidecar.get(path)
        assert status == 200
        assert json.loads(body) == {"status": "ok"}


def test_a_page_that_is_not_there_is_not_found(sidecar: Operated) -> None:
    assert sidecar.get("/nothing")[0] == 404
    assert sidecar.get("/healthz?verbose=1")[0] == 200


def test_every_metric_parses_and_says_what_it_is(sidecar: Operated) -> None:
    families = list(text_string_to_metric_families(sidecar.get("/metrics")[1]))
    assert len(families) > 20
    for family in families:
        assert family.name.startswith(("stream_metrics_", "process_")), family.name
        assert family.documentation.endswith("."), family.name
        assert family.type in ("counter", "gauge", "histogram"), family.name


def test_no_label_grows_with_what_is_trained(sidecar: Operated) -> None:
    allowed = {"reason", "kind", "le", "type", "partition"}
    for family in text_string_to_metric_families(sidecar.get("/metrics")[1]):
        for one in family.samples:
            assert set(one.labels) <= allowed, one
            assert "seen" not in one.labels.values()


def test_the_metrics_count_what_has_happened(sidecar: Operated) -> None:
    sidecar.wait_until_read()
    assert sidecar.metric("records_total") == 5
    by_type = {"sample": 2, "samples": 0, "close": 1}
    assert {name: sidecar.metric("events_total", type=name) for name in by_type} == by_type
    assert sidecar.metric("samples_total") == 2
    assert sidecar.metric("tombstones_total") == 1
    assert sidecar.metric("results_total") == 1
    assert sidecar.metric("dead_letters_total", reason="undecodable") == 1
    assert sidecar.metric("commits_total") >= 1
    assert sidecar.metric("close_to_publish_seconds_count") == 1
    assert 0 < sidecar.metric("close_to_publish_seconds_sum") < 30
    sidecar.wait_until(lambda: sidecar.metric("partitions") == 1, "a look at the partitions")
    assert sidecar.metric("consumer_lag") == 0
    assert sidecar.metric("is_ready") == 1


def test_every_log_line_is_one_JSON_object(sidecar: Operated) -> None:
    lines = sidecar.process.log()
    assert all({"time", "level", "message"} <= line.keys() for line in lines), lines
    (line,) = sidecar.process.said("step closed")
    assert (line["run_id"], line["step"], line["complete"], line["reason"]) == ("seen", 1, True, "closed")
    assert (line["samples"], line["episode_raw_reward"]) == (2, 0.5)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("no.such=1", "no.such"),
        ("socket.timeout.ms=soon", "socket.timeout.ms"),
        ("fetch.max.bytes=10", "fetch.max.bytes"),
    ],
)
def test_a_client_property_that_is_refused_is_a_wrong_setting_and_named(
    sidecar: Operated, given: str, named: str
) -> None:
    another = sidecar.deployment.start(kafka_config=given)
    assert another.wait_until_ended() == 2
    (line,) = (line for line in another.log() if line["level"] == "error")
    assert line["message"].startswith("kafka-config: ") and named in line["message"]
    assert "exception" not in line


def test_a_port_that_is_taken_is_a_wrong_setting(sidecar: Operated) -> None:
    port = sidecar.process.settings["http-port"]
    another = sidecar.deployment.start(http_port=port)
    assert another.wait_until_ended() == 2
    (line,) = another.said("can't listen")
    assert line["address"] == f"127.0.0.1:{port}"

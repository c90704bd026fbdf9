"""Which of the client's errors say that the broker is away. Nothing is connected to."""

from __future__ import annotations

import time

from confluent_kafka import KafkaError

from stream_metrics.config import Settings
from stream_metrics.sidecar.health import Health
from stream_metrics.sidecar.loop import Sidecar
from stream_metrics.sidecar.self_metrics import SelfMetrics

ALL_DOWN = KafkaError(KafkaError._ALL_BROKERS_DOWN)
ONE_DOWN = KafkaError(KafkaError._TRANSPORT)


def _sidecar() -> tuple[Sidecar, Health, SelfMetrics]:
    health, metrics = Health(0.5, time.monotonic), SelfMetrics()
    health.not_ready = ""
    return Sidecar(Settings(), "id", health, metrics), health, metrics


def test_a_consumer_that_has_lost_all_brokers_makes_it_not_ready_at_once() -> None:
    sidecar, health, metrics = _sidecar()
    sidecar._on_error(ONE_DOWN)
    assert health.ready()[0]
    assert metrics.registry.get_sample_value("stream_metrics_is_ready") == 1
    sidecar._on_error(ALL_DOWN)
    assert not health.ready()[0]
    assert metrics.registry.get_sample_value("stream_metrics_is_ready") == 0


def test_a_producer_that_has_lost_all_brokers_matters_only_in_a_transaction() -> None:
    sidecar, health, _ = _sidecar()
    sidecar._on_producer_error(ALL_DOWN)
    assert health.ready()[0]  # a broker hangs up on who has nothing to say for long
    health.begin_commit()
    sidecar._on_producer_error(ONE_DOWN)
    assert health.ready()[0]
    sidecar._on_producer_error(ALL_DOWN)
    assert not health.ready()[0]

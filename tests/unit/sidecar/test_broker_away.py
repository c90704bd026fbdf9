"""When the broker is taken for away, and when the client for one that won't find it again. Nothing is connected to."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException

from stream_metrics.config import Settings
from stream_metrics.sidecar import loop
from stream_metrics.sidecar.errors import RestartError
from stream_metrics.sidecar.health import Health
from stream_metrics.sidecar.input_topic import SILENT_LOOKS
from stream_metrics.sidecar.loop import FORGOTTEN_SECONDS, Sidecar
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


class _Consumer:
    """A consumer that finds the broker, or not."""

    def __init__(self) -> None:
        self.finds_broker = False
        self.answers_after = 0.0
        self.num_asked = 0

    def list_topics(self, _: str, timeout: float) -> None:
        self.num_asked += 1
        if not self.finds_broker or timeout < self.answers_after:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))


def _ticking(monkeypatch: pytest.MonkeyPatch, *, is_there: bool) -> tuple[Sidecar, _Consumer, Health]:
    sidecar, health, _ = _sidecar()
    consumer = _Consumer()
    sidecar._consumer = consumer  # type: ignore[assignment]  # all that it needs
    monkeypatch.setattr(loop, "broker_answers", lambda _: is_there)
    health.is_broker_away = True
    sidecar._answered_at = 0.0
    return sidecar, consumer, health


def test_a_consumer_that_has_forgotten_its_broker_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    sidecar, consumer, _ = _ticking(monkeypatch, is_there=True)
    sidecar._look_for_broker(FORGOTTEN_SECONDS)
    assert consumer.num_asked == 1
    with pytest.raises(RestartError, match="doesn't find the broker"):
        sidecar._look_for_broker(FORGOTTEN_SECONDS + 1)
    assert consumer.num_asked == 3  # once more before it is given up


def test_a_broker_that_answers_behind_a_fetch_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    sidecar, consumer, health = _ticking(monkeypatch, is_there=True)
    consumer.finds_broker = True
    consumer.answers_after = 0.5  # fetch.wait.max.ms: a broker answers the requests of a connection in their order
    sidecar._look_for_broker(FORGOTTEN_SECONDS)
    assert health.ready()[0]


def test_a_broker_that_nobody_finds_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    sidecar, consumer, health = _ticking(monkeypatch, is_there=False)
    for second in range(100):
        sidecar._look_for_broker(float(second))
    assert not health.ready()[0]
    consumer.finds_broker = True
    sidecar._look_for_broker(100.0)
    assert health.ready()[0]


def test_a_broker_that_is_silent_without_hanging_up_makes_it_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    sidecar, consumer, health = _ticking(monkeypatch, is_there=False)
    health.is_broker_away = False
    topic = SimpleNamespace(silent_looks=SILENT_LOOKS - 1)
    sidecar._input_topic = topic  # type: ignore[assignment]  # all that it needs
    sidecar._look_for_silence()
    assert health.ready()[0] and consumer.num_asked == 0  # an idle sidecar asks nothing more
    topic.silent_looks = SILENT_LOOKS
    sidecar._look_for_silence()
    assert not health.ready()[0]
    sidecar._look_for_silence()
    assert consumer.num_asked == 1  # from now on it is looked for


def test_who_alone_finds_no_broker_is_replaced_and_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    sidecar, consumer, health = _ticking(monkeypatch, is_there=True)
    health.is_broker_away = False
    consumer.finds_broker = True
    begun_anew: list[bool] = []
    topic = SimpleNamespace(silent_looks=SILENT_LOOKS, begin_anew=lambda: begun_anew.append(True))
    sidecar._input_topic = topic  # type: ignore[assignment]
    sidecar._look_for_silence()
    assert begun_anew and health.ready()[0]

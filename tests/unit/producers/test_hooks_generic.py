from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from stream_metrics.producers import RolloutProducer
from stream_metrics.producers.environment import shared
from stream_metrics.producers.hooks.generic import publish_step, publishes_step


@pytest.fixture(autouse=True)
def producer(kafka: Any) -> Iterator[RolloutProducer]:
    with RolloutProducer("nowhere:1", spool_directory="", connect=kafka.connect) as producer:
        shared.set(producer)
        yield producer
    shared.set(None)


def test_one_call_sends_and_closes_a_step(producer: RolloutProducer, kafka: Any) -> None:
    publish_step(4, [("a", 1.0), ("b", 0.0)], to_sample=lambda pair: {"rollout_id": pair[0], "reward": pair[1]})
    producer.flush(5)
    assert kafka.kinds == ["2", "close"]
    assert [(one["rollout_id"], one["reward"]) for one in kafka.samples] == [("a", 1.0), ("b", 0.0)]


def test_a_decorated_function_works_as_before_and_its_samples_are_sent(producer: RolloutProducer, kafka: Any) -> None:
    @publishes_step(step="iteration", scope="eval/x")
    def collect(policy: str, iteration: int = 3) -> list[dict[str, Any]]:
        """Collects."""
        return [{"reward": 1.0}]

    assert collect("policy") == [{"reward": 1.0}]
    assert collect.__doc__ == "Collects."
    producer.flush(5)
    assert [(close.scope, close.step) for close in kafka.closes] == [("eval/x", 3)]


def test_an_async_function_may_be_decorated(producer: RolloutProducer, kafka: Any) -> None:
    @publishes_step()
    async def collect(step: int) -> list[dict[str, Any]]:
        return [{"reward": 1.0}]

    assert asyncio.run(collect(2)) == [{"reward": 1.0}]
    producer.flush(5)
    assert kafka.kinds == ["1", "close"]


def test_a_function_that_raises_sends_nothing(producer: RolloutProducer, kafka: Any) -> None:
    @publishes_step()
    def collect(step: int) -> list[dict[str, Any]]:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        collect(1)
    producer.flush(5)
    assert kafka.log == []


def test_a_generator_is_left_whole_for_the_trainer(producer: RolloutProducer, kafka: Any) -> None:
    @publishes_step()
    def collect(step: int) -> Iterator[int]:
        return iter([1, 2])

    assert list(collect(1)) == [1, 2]
    producer.flush(5)
    assert kafka.log == []


def test_a_sample_that_cannot_be_made_does_not_reach_the_trainer(
    producer: RolloutProducer, caplog: pytest.LogCaptureFixture
) -> None:
    publish_step(1, [1], to_sample=lambda item: item / 0)
    assert "step 1 could not be sent" in caplog.text


def test_a_step_that_is_no_parameter_is_told_at_once() -> None:
    with pytest.raises(TypeError, match="no parameter 'step'"):

        @publishes_step()
        def collect(iteration: int) -> None: ...

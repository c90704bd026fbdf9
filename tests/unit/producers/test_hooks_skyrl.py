"""The hook of SkyRL, with inputs and outputs of its generator interface."""

from __future__ import annotations

import asyncio
import copy
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from stream_metrics.producers import RolloutProducer
from stream_metrics.producers.hooks.skyrl import PublishingGenerator


# Stand-ins for the dataclasses in `skyrl/train/generators/base.py`; input and output are TypedDicts there, so dicts.
@dataclass
class TrajectoryID:
    instance_id: str
    repetition_id: int


@dataclass
class BatchMetadata:
    global_step: int
    training_phase: str


class Generator:
    """Two repetitions a prompt; rewards by repetition. Step-wise: two rows a trajectory."""

    def __init__(self, *, is_step_wise: bool = False, is_per_token: bool = False) -> None:
        self.is_step_wise = is_step_wise
        self.is_per_token = is_per_token
        self.weights_loaded = True

    async def generate(self, input_batch: Any, disable_tqdm: bool = False) -> Any:
        rows = [one for one in input_batch["trajectory_ids"] for _ in range(2 if self.is_step_wise else 1)]
        output = {
            "prompt_token_ids": [[1]] * len(rows),
            "response_ids": [[1, 2, 3]] * len(rows),
            "rewards": [
                [0.0, 0.0, float(one.repetition_id)] if self.is_per_token else float(one.repetition_id) for one in rows
            ],
            "loss_masks": [[1, 0, 1]] * len(rows),
            "stop_reasons": ["stop", "length"] * (len(rows) // 2),
            "rollout_metrics": {},
            "rollout_logprobs": None,
        }
        return {**output, "trajectory_ids": rows, "is_last_step": [True] * len(rows)} if self.is_step_wise else output


def batch(step: int, *instances: str, phase: str = "train") -> dict[str, Any]:
    ids = [TrajectoryID(instance, repetition) for instance in instances for repetition in range(2)]
    return {"prompts": [[]] * len(ids), "trajectory_ids": ids, "batch_metadata": BatchMetadata(step, phase)}


@pytest.fixture
def producer(kafka: Any) -> Iterator[RolloutProducer]:
    with RolloutProducer("nowhere:1", spool_directory="", connect=kafka.connect) as producer:
        yield producer


@pytest.mark.parametrize("is_per_token", [False, True])
def test_a_batch_is_sent_with_its_trajectories_and_the_step_closed(
    producer: RolloutProducer, kafka: Any, is_per_token: bool
) -> None:
    generator = PublishingGenerator(Generator(is_per_token=is_per_token), producer=producer)
    output = asyncio.run(generator.generate(batch(3, "a", "b")))
    assert len(output["rewards"]) == 4
    producer.flush(5)
    assert kafka.kinds[-1] == "close"
    assert (kafka.closes[0].step, kafka.closes[0].expected_samples) == (3, 4)
    assert [(one["group_index"], one["rollout_id"], one["reward"], one["status"]) for one in kafka.samples] == [
        ("a", 0, 0.0, "completed"),
        ("a", 1, 1.0, "truncated"),
        ("b", 0, 0.0, "completed"),
        ("b", 1, 1.0, "truncated"),
    ]
    assert {(one["response_length"], one["effective_response_length"]) for one in kafka.samples} == {(3, 2)}


def test_rows_of_one_trajectory_are_one_rollout(producer: RolloutProducer, kafka: Any) -> None:
    generator = PublishingGenerator(Generator(is_step_wise=True), producer=producer)
    asyncio.run(generator.generate(batch(1, "a")))
    producer.flush(5)
    assert [(one["group_index"], one["rollout_id"]) for one in kafka.samples] == [
        ("a", 0),
        ("a", 0),
        ("a", 1),
        ("a", 1),
    ]
    assert len({one["sample_id"] for one in kafka.samples}) == 4


def test_an_evaluation_has_its_own_scope(producer: RolloutProducer, kafka: Any) -> None:
    generator = PublishingGenerator(Generator(), producer=producer)
    asyncio.run(generator.generate(batch(1, "a", phase="eval")))
    producer.flush(5)
    assert [(close.scope, close.step) for close in kafka.closes] == [("eval", 1)]


def test_several_calls_a_step_close_with_the_next_step_and_with_close(producer: RolloutProducer, kafka: Any) -> None:
    generator = PublishingGenerator(Generator(), closes="next_step", producer=producer)

    async def work() -> None:
        await asyncio.gather(*(generator.generate(batch(1, name)) for name in "ab"))
        await generator.generate(batch(2, "c"))

    asyncio.run(work())
    producer.flush(5)
    assert [(close.step, close.expected_samples) for close in kafka.closes] == [(1, 4)]
    generator.close()
    producer.flush(5)
    assert [close.step for close in kafka.closes] == [1, 2]


def test_a_second_call_of_a_closed_step_is_late_and_not_a_repeat(producer: RolloutProducer, kafka: Any) -> None:
    generator = PublishingGenerator(Generator(), producer=producer)
    for name in "ab":
        asyncio.run(generator.generate(batch(1, name)))
    producer.flush(5)
    assert len({one["sample_id"] for one in kafka.samples}) == 4


@pytest.mark.parametrize("odd", [{}, {"batch_metadata": None}, {"batch_metadata": BatchMetadata(-1, "train")}])
def test_odd_batches_do_not_reach_the_trainer(producer: RolloutProducer, kafka: Any, odd: dict[str, Any]) -> None:
    generator = PublishingGenerator(Generator(), producer=producer)
    output = asyncio.run(generator.generate({"trajectory_ids": [TrajectoryID("a", 0), TrajectoryID("a", 1)], **odd}))
    assert len(output["rewards"]) == 2
    producer.flush(5)
    assert kafka.log == []


def test_a_generator_that_fails_fails_as_ever(producer: RolloutProducer) -> None:
    with pytest.raises(KeyError):
        asyncio.run(PublishingGenerator(Generator(), producer=producer).generate({}))


def test_the_parameters_of_generate_are_the_generators_own(producer: RolloutProducer) -> None:
    # The fully asynchronous trainer asks for them.
    generator = PublishingGenerator(Generator(), producer=producer)
    assert "disable_tqdm" in inspect.signature(generator.generate).parameters


def test_all_else_of_the_generator_is_reachable_and_it_can_be_copied(producer: RolloutProducer) -> None:
    generator = PublishingGenerator(Generator(), producer=None)
    assert generator.weights_loaded
    assert copy.copy(generator).weights_loaded

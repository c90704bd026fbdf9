"""The hook of TRL, driven as its trainer does."""

from __future__ import annotations

import asyncio
import functools
import inspect
import types
from collections.abc import Iterator
from typing import Any

import pytest

from stream_metrics.producers import RolloutProducer
from stream_metrics.producers.hooks.trl import PublishedRewards


class Trainer:
    """Calls reward functions and callbacks in the order and with the arguments that TRL and transformers do.

    After `GRPOTrainer._calculate_rewards` and `_generate_and_score_completions` of `trl/trainer/grpo_trainer.py`,
    `Trainer._inner_training_loop` and `CallbackHandler.call_event` of transformers. Those need torch.
    """

    def __init__(
        self, reward_funcs: list[Any], callbacks: list[Any], generations: int = 2, has_model: bool = True
    ) -> None:
        self.reward_funcs = reward_funcs
        self.callbacks = callbacks
        self.generations = generations
        self.state = types.SimpleNamespace(global_step=0)
        self.control = types.SimpleNamespace(should_evaluate=False)
        self.model = types.SimpleNamespace(training=True) if has_model else None
        self.rewards: list[list[Any]] = []

    def call(self, event: str) -> None:
        for callback in self.callbacks:
            getattr(callback, event)(types.SimpleNamespace(), self.state, self.control, model=self.model)

    def generate(self, prompts: list[Any]) -> None:
        repeated = [prompt for prompt in prompts for _ in range(self.generations)]
        completions = [f"{prompt} -> {n}" for n, prompt in enumerate(repeated)]
        keywords = {
            "prompts": repeated,
            "completions": completions,
            "completion_ids": [[1] * (n + 1) for n in range(len(repeated))],
            "data_source": ["math"] * len(repeated),
            "trainer_state": self.state,
        }
        self.rewards = []
        for function in self.reward_funcs:
            if inspect.iscoroutinefunction(function):
                self.rewards.append(asyncio.run(function(**keywords)))
            else:
                self.rewards.append(function(**keywords))

    def train(self, steps: list[list[Any]], evaluate_after: dict[int, list[Any]] | None = None) -> None:
        self.call("on_init_end")
        self.call("on_train_begin")
        for prompts in steps:
            self.call("on_step_begin")
            self.generate(prompts)
            self.state.global_step += 1
            self.control.should_evaluate = self.state.global_step in (evaluate_after or {})
            self.call("on_step_end")
            if self.control.should_evaluate:
                if self.model is not None:
                    self.model.training = False
                self.generate((evaluate_after or {})[self.state.global_step])
                self.call("on_evaluate")
                if self.model is not None:
                    self.model.training = True
                self.control.should_evaluate = False
        self.call("on_train_end")


def length_reward(completions: list[str], **_: Any) -> list[float | None]:
    return [float(n % 2) if n < 3 else None for n, _ in enumerate(completions)]


async def slow_reward(prompts: list[Any], **_: Any) -> list[float | None]:
    return [0.5 if n < 3 else None for n, _ in enumerate(prompts)]


@pytest.fixture
def producer(kafka: Any) -> Iterator[RolloutProducer]:
    with RolloutProducer("nowhere:1", spool_directory="", connect=kafka.connect) as producer:
        yield producer


def test_each_batch_is_sent_with_the_weighted_sum_and_its_step_closed(producer: RolloutProducer, kafka: Any) -> None:
    published = PublishedRewards([length_reward, slow_reward], weights=[1.0, 0.2], producer=producer)
    Trainer(published.functions, [published.callback]).train([["a", "b"], ["c"]])
    producer.flush(5)
    assert kafka.kinds == ["4", "close", "2", "close"]
    assert [(close.step, close.expected_samples) for close in kafka.closes] == [(0, 4), (1, 2)]
    first = kafka.samples[:4]
    assert [one["reward"] for one in first] == pytest.approx([0.1, 1.1, 0.1, None])
    assert [one["rollout_id"] for one in first] == ["0:0", "0:1", "0:2", "0:3"]
    assert [one["response_length"] for one in first] == [1, 2, 3, 4]
    assert first[0]["group_index"] == first[1]["group_index"] != first[2]["group_index"]
    assert first[1]["values"] == {"rewards/length_reward": 1.0, "rewards/slow_reward": 0.5}
    assert first[0]["data_source"] == "math"


def test_the_trainer_gets_what_its_functions_return_under_their_names(producer: RolloutProducer) -> None:
    published = PublishedRewards([length_reward, slow_reward], producer=producer)
    trainer = Trainer(published.functions, [published.callback])
    trainer.generate(["a"])
    assert trainer.rewards == [[0.0, 1.0], [0.5, 0.5]]
    assert [function.__name__ for function in published.functions] == ["length_reward", "slow_reward"]


@pytest.mark.parametrize("has_model", [False, True])
def test_an_evaluation_has_its_own_scope(producer: RolloutProducer, kafka: Any, has_model: bool) -> None:
    published = PublishedRewards([length_reward], producer=producer)
    trainer = Trainer(published.functions, [published.callback], has_model=has_model)
    trainer.train([["a"], ["b"]], evaluate_after={1: ["x", "y"]})
    producer.flush(5)
    assert [(close.scope, close.step, close.expected_samples) for close in kafka.closes] == [
        ("rollout", 0, 2),
        ("eval", 1, 4),
        ("rollout", 1, 2),
    ]


def test_several_generations_of_one_step_are_one_step(producer: RolloutProducer, kafka: Any) -> None:
    published = PublishedRewards([length_reward], producer=producer)
    trainer = Trainer(published.functions, [published.callback])
    trainer.generate(["a"])
    trainer.generate(["a"])
    trainer.state.global_step = 1
    trainer.call("on_step_end")
    producer.flush(5)
    assert len({one["rollout_id"] for one in kafka.samples}) == 4
    assert [(close.step, close.expected_samples) for close in kafka.closes] == [(0, 4)]


def test_without_the_callback_a_step_closes_when_the_next_begins(producer: RolloutProducer, kafka: Any) -> None:
    published = PublishedRewards([length_reward], producer=producer)
    Trainer(published.functions, []).train([["a"], ["b"]])
    producer.flush(5)
    assert [close.step for close in kafka.closes] == [0]


def test_every_rank_is_a_producer_of_its_own(kafka: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from stream_metrics.producers.environment import SharedProducer, producer_from_environment
    from stream_metrics.producers.hooks import trl

    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        monkeypatch.setattr(
            trl,
            "shared",
            SharedProducer(
                lambda **given: producer_from_environment(connect=kafka.connect, spool_directory="", **given)
            ),
        )
        published = PublishedRewards([length_reward])
        Trainer(published.functions, [published.callback]).train([["same prompt"]])
        published._get().close()  # type: ignore[union-attr]
    assert [(close.producer, close.producers, close.expected_samples) for close in kafka.closes] == [
        ("rank0", 2, 2),
        ("rank1", 2, 2),
    ]
    assert len({one["group_index"] for one in kafka.samples}) == 1
    assert len({one["rollout_id"] for one in kafka.samples}) == 4
    assert len({one["sample_id"] for one in kafka.samples}) == 4


def test_partials_async_objects_and_iterators_are_functions_too(producer: RolloutProducer, kafka: Any) -> None:
    class Judge:
        async def __call__(self, prompts: list[Any], **_: Any) -> list[float]:
            return [2.0] * len(prompts)

    def walked_once(prompts: list[Any], value: float, **_: Any) -> Iterator[float]:
        return iter([value] * len(prompts))

    published = PublishedRewards([Judge(), functools.partial(walked_once, value=0.5)], producer=producer)
    assert [function.__name__ for function in published.functions] == ["Judge", "walked_once"]
    trainer = Trainer(published.functions, [published.callback])
    trainer.generate(["a"])
    assert [list(rewards) for rewards in trainer.rewards] == [[2.0, 2.0], [0.5, 0.5]]
    producer.flush(5)
    assert [one["reward"] for one in kafka.samples] == [2.5, 2.5]


def test_a_reward_model_stays_as_it_is_and_the_rest_goes_as_an_object(producer: RolloutProducer, kafka: Any) -> None:
    class Model:
        def forward(self) -> None: ...

        def __call__(self, **_: Any) -> list[float]:
            return [9.0, 9.0]

    model = Model()
    published = PublishedRewards([model, length_reward], producer=producer)
    assert published.functions[0] is model
    Trainer(published.functions, [published.callback]).train([["a"]])
    producer.flush(5)
    assert [one["reward"] for one in kafka.samples] == [{"length_reward": 0.0}, {"length_reward": 1.0}]


def test_a_function_that_raises_is_the_trainers_own_and_leaves_no_half_batch(
    producer: RolloutProducer, kafka: Any
) -> None:
    failures = [ValueError("reward failed")]

    def flaky(prompts: list[Any], **_: Any) -> list[float]:
        if failures:
            raise failures.pop()
        return [2.0] * len(prompts)

    published = PublishedRewards([length_reward, flaky], producer=producer)
    trainer = Trainer(published.functions, [published.callback])
    with pytest.raises(ValueError, match="reward failed"):
        trainer.generate(["a"])
    trainer.generate(["a"])
    producer.flush(5)
    assert [one["reward"] for one in kafka.samples] == [2.0, 3.0]


@pytest.mark.parametrize("rewards", [None, 7, [1.0], ["x", object()]])
def test_odd_rewards_do_not_reach_the_trainer(producer: RolloutProducer, rewards: Any) -> None:
    published = PublishedRewards([lambda **_: rewards], producer=producer)
    assert published.functions[0](prompts=["a", "b"], completions=["c", "d"], trainer_state=None) == rewards
    state = types.SimpleNamespace(global_step=1)
    assert published.functions[0](prompts=["a", "b"], completions=["c", "d"], trainer_state=state) == rewards


def test_the_callback_has_every_event_and_nothing_else() -> None:
    callback = PublishedRewards([length_reward]).callback
    callback.on_log(None, None, None, logs={})
    assert not hasattr(callback, "state")

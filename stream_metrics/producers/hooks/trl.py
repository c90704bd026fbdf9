"""The hook of TRL: its reward functions, wrapped, and a callback.

    published = PublishedRewards([accuracy, format_reward], weights=[1.0, 0.2])
    trainer = GRPOTrainer(..., reward_funcs=published.functions, callbacks=[published.callback])

A reward function sees no other's rewards, so a function of ours beside them would not do: each is wrapped, and the
last to return sends the batch. Every rank does so for its own completions, and a step closes once all ranks have
closed it.

Written against `GRPOTrainer._calculate_rewards` of `trl/trainer/grpo_trainer.py` and `CallbackHandler` of transformers.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from stream_metrics.producers.client import RolloutProducer
from stream_metrics.producers.environment import shared

_log = logging.getLogger(__name__)


class PublishedRewards:
    """Reward functions whose completions and rewards are sent.

    Attributes:
        functions: What to give to the trainer as `reward_funcs`.
        callback: What to add to its `callbacks`: it closes steps, and tells evaluation from training.
    """

    def __init__(
        self,
        functions: Sequence[Any],
        *,
        weights: Sequence[float] | None = None,
        scope: str | None = None,
        eval_scope: str = "eval",
        producer: RolloutProducer | None = None,
    ) -> None:
        """Wraps the functions; reward models, which can't be wrapped, stay as they are.

        Args:
            functions: The trainer's `reward_funcs`.
            weights: Its `reward_weights`; None is 1 for each.
            scope: Prefix of the metrics' keys; None takes the producer's.
            eval_scope: The same for completions of an evaluation.
            producer: Where to; None makes one from the environment, with the launcher's RANK and WORLD_SIZE.
        """
        self._weights = [1.0] * len(functions) if weights is None else list(weights)
        if len(self._weights) != len(functions):
            raise ValueError(f"{len(self._weights)} weights for {len(functions)} reward functions")
        self._scope = scope
        self._eval_scope = eval_scope
        self._producer = producer
        self._names = [_name(function) for function in functions]
        self._watched = {n for n, function in enumerate(functions) if _is_function(function)}
        self._batch: dict[int, Sequence[Any]] = {}
        self._open: dict[tuple[str | None, int], int] = {}
        self._rank = _rank()
        self._is_said = False
        self._model: Any = None
        self._control: Any = None
        self.functions = [
            self._wrap(n, function) if n in self._watched else function for n, function in enumerate(functions)
        ]
        self.callback = _Callback(self)
        if len(self._watched) < len(functions):
            _log.warning("rewards of reward models aren't seen: rewards go as an object of the functions' ones")

    def close_before(self, step: int | None, *, is_evaluation: bool = False) -> None:
        """Closes the open steps below `step`, all of them for None. Never raises."""
        scope = self._eval_scope if is_evaluation else self._scope
        for one in sorted(number for name, number in self._open if name == scope):
            if step is None or one < step:
                del self._open[scope, one]
                producer = self._get()
                if producer is not None:
                    producer.close_step(one, scope=scope)

    def _wrap(self, number: int, function: Callable[..., Any]) -> Callable[..., Any]:
        if _is_async(function):

            @functools.wraps(function)
            async def wrapped_async(*arguments: Any, **keywords: Any) -> Any:
                return self._take(number, await function(*arguments, **keywords), arguments, keywords)

            wrapped_async.__name__ = self._names[number]
            return wrapped_async

        @functools.wraps(function)
        def wrapped(*arguments: Any, **keywords: Any) -> Any:
            return self._take(number, function(*arguments, **keywords), arguments, keywords)

        wrapped.__name__ = self._names[number]  # what has no name of its own is logged by TRL under its class's
        return wrapped

    def watch(self, model: Any, control: Any) -> None:
        """Remembers what tells evaluation from training."""
        self._model = model if model is not None else self._model
        self._control = control

    def _is_evaluation(self) -> bool:
        # As newer and older trainers themselves tell.
        is_training = getattr(self._model, "training", None)
        return not is_training if is_training is not None else bool(getattr(self._control, "should_evaluate", False))

    def _take(self, number: int, rewards: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        if isinstance(rewards, Iterator):  # can be walked once only, and the trainer must
            rewards = list(rewards)
        try:
            if number in self._batch:  # what is left of a batch that failed
                self._batch = {}
            self._batch[number] = list(rewards)
            if self._batch.keys() == self._watched:
                batch, self._batch = self._batch, {}
                given = dict(zip(("prompts", "completions"), arguments, strict=False))
                self._publish(batch, {**given, **keywords})
        except Exception:
            if not self._is_said:
                self._is_said = True
                _log.exception("a batch could not be sent; training goes on (said once)")
        return rewards

    def _publish(self, batch: dict[int, Sequence[Any]], given: dict[str, Any]) -> None:
        producer = self._get()
        step = getattr(given.get("trainer_state"), "global_step", None)
        if producer is None or step is None:
            if not self._is_said:
                self._is_said = True
                _log.error("TRL gives no trainer_state to reward functions here, so no step is known; nothing is sent")
            return
        is_evaluation = self._is_evaluation()
        scope = self._eval_scope if is_evaluation else self._scope
        self.close_before(step, is_evaluation=is_evaluation)
        before = self._open.get((scope, step), 0)
        samples = self._samples(batch, given, before)
        self._open[scope, step] = before + len(samples)
        producer.emit_step(samples, step=step, scope=scope)

    def _samples(self, batch: dict[int, Sequence[Any]], given: dict[str, Any], before: int) -> list[dict[str, Any]]:
        prompts = given.get("prompts") or []
        ids = given.get("completion_ids")
        sources = given.get("data_source")
        groups: dict[int, str] = {}
        made = []
        for place in range(len(prompts)):
            parts = {self._names[n]: batch[n][place] for n in sorted(batch)}
            prompt = prompts[place]
            if id(prompt) not in groups:  # repeated prompts are mostly one object
                groups[id(prompt)] = _group(prompt)
            made.append(
                {
                    "group_index": groups[id(prompt)],
                    "rollout_id": f"{self._rank}:{before + place}",
                    "reward": self._reward(batch, place),
                    "values": {f"rewards/{name}": value for name, value in parts.items() if value is not None},
                    "response_length": len(ids[place]) if ids is not None else None,
                    "data_source": sources[place] if isinstance(sources, list) else None,
                }
            )
        return made

    def _reward(self, batch: dict[int, Sequence[Any]], place: int) -> Any:
        """Returns what the trainer sums up: functions that returned None don't count, and where all did there is
        none.
        """
        if len(self._watched) < len(self._names):
            return {self._names[n]: batch[n][place] for n in batch}
        given = [(self._weights[n], batch[n][place]) for n in sorted(batch) if batch[n][place] is not None]
        return sum(weight * float(reward) for weight, reward in given) if given else None

    def _get(self) -> RolloutProducer | None:
        if self._producer is None:
            ranks = os.environ.get("WORLD_SIZE", "1")
            count = int(ranks) if ranks.isdigit() else 1
            name = f"rank{self._rank}" if count > 1 else ""
            self._producer = shared.get(producer=name, producers=max(1, count))
        return self._producer


class _Callback:
    """Has every event of a `TrainerCallback` without being one, so that transformers need not be imported."""

    def __init__(self, rewards: PublishedRewards) -> None:
        self._rewards = rewards

    def on_init_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        self._rewards.watch(model, control)

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        self._rewards.watch(model, control)

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        self._rewards.watch(model, control)
        self._rewards.close_before(state.global_step)

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._rewards.close_before(None, is_evaluation=True)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._rewards.close_before(None)
        self._rewards.close_before(None, is_evaluation=True)

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("on_"):
            return lambda *arguments, **keywords: None
        raise AttributeError(name)


def _is_function(function: Any) -> bool:
    return callable(function) and not hasattr(function, "forward")


def _unwrapped(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _name(function: Any) -> str:
    """Returns the name under which TRL logs it."""
    inner = _unwrapped(function)
    return str(getattr(inner, "__name__", type(inner).__name__))


def _is_async(function: Any) -> bool:
    inner = _unwrapped(function)
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(type(inner).__call__)


def _group(prompt: Any) -> str:
    """Returns a short name of the prompt, the same on every rank: a group may be spread over several."""
    text = prompt if isinstance(prompt, str) else json.dumps(prompt, sort_keys=True, default=repr)
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()


def _rank() -> int:
    text = os.environ.get("RANK", "0")
    return int(text) if text.isdigit() else 0

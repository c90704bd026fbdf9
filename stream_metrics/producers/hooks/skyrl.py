"""The hook of SkyRL: a generator around the trainer's own, made in an overridden `get_generator`.

    class Experiment(BasePPOExp):
        def get_generator(self, cfg, tokenizer, inference_engine_client):
            return PublishingGenerator(super().get_generator(cfg, tokenizer, inference_engine_client))

Written against `GeneratorInterface` of `skyrl/train/generators/base.py`.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import Any, Literal

from stream_metrics.producers.client import RolloutProducer
from stream_metrics.producers.environment import shared

MAX_SUMMED_TOKENS = 20_000_000
"""Loss masks summed in one call; batches with more go without effective lengths."""

_STATUSES = {"stop": "completed", "length": "truncated", "abort": "aborted"}
_log = logging.getLogger(__name__)


class PublishingGenerator:
    """Generates as the generator that it wraps, and sends what comes of it; all else of that one is reachable
    through it.
    """

    def __init__(
        self,
        generator: Any,
        *,
        closes: Literal["call", "next_step"] = "call",
        eval_scope: str = "eval",
        producer: RolloutProducer | None = None,
    ) -> None:
        """Wraps a generator.

        Args:
            generator: The trainer's own.
            closes: When a step is closed: `call`, after its one call of `generate`, as the synchronous trainer makes
                it; `next_step`, when a later step's first call returns, for the fully asynchronous trainer and for
                dynamic sampling, which call several times a step. Then `close` closes the last one.
            eval_scope: Prefix of the metrics' keys for evaluations.
            producer: Where to; None makes one from the environment.
        """
        self._generator = generator
        self._closes = closes
        self._eval_scope = eval_scope
        self._producer = producer
        self._open: set[tuple[str, int]] = set()
        self._is_said = False

        @functools.wraps(generator.generate)  # the trainer looks at its parameters
        async def generate(input_batch: Any, *arguments: Any, **keywords: Any) -> Any:
            output = await generator.generate(input_batch, *arguments, **keywords)
            try:
                self._publish(input_batch, output)
            except Exception:
                self._say("a batch could not be sent; training goes on", exc_info=True)
            return output

        self.generate = generate

    def close(self) -> None:
        """Closes the steps that are still open."""
        producer = self._get()
        if producer is not None:
            for scope, step in sorted(self._open):
                producer.close_step(step, scope=scope)
        self._open.clear()

    def __getattr__(self, name: str) -> Any:
        if name == "_generator":  # while it is copied or unpickled, there is none yet
            raise AttributeError(name)
        return getattr(self._generator, name)

    def _publish(self, batch: Any, output: Any) -> None:
        producer = self._get()
        if producer is None:
            return
        metadata = batch.get("batch_metadata")
        step = getattr(metadata, "global_step", None)
        if step is None:
            self._say("batches have no batch_metadata.global_step here, so no step is known; nothing is sent")
            return
        is_evaluation = getattr(metadata, "training_phase", "train") == "eval"
        scope = self._eval_scope if is_evaluation else producer.scope
        if self._closes == "next_step":
            for other in sorted(number for name, number in self._open if name == scope and number < step):
                self._open.discard((scope, other))
                producer.close_step(other, scope=scope)
        # One by one: as a whole step a second call would be taken for the first one repeated.
        for sample in _samples(batch, output):
            producer.emit(sample, step=step, scope=scope)
        if self._closes == "call":
            producer.close_step(step, scope=scope)
        else:
            self._open.add((scope, step))

    def _get(self) -> RolloutProducer | None:
        if self._producer is None:
            self._producer = shared.get(is_only_process=True)
        return self._producer

    def _say(self, message: str, *, exc_info: bool = False) -> None:
        if not self._is_said:
            self._is_said = True
            _log.error("%s (said once)", message, exc_info=exc_info)


def _samples(batch: Any, output: Any) -> list[dict[str, Any]]:
    rewards = output["rewards"]
    # Step-wise training has several rows a trajectory, and then tells in the output which is whose.
    trajectories = output.get("trajectory_ids") or batch.get("trajectory_ids") or [None] * len(rewards)
    responses = output.get("response_ids") or [None] * len(rewards)
    masks = output.get("loss_masks") or [None] * len(rewards)
    reasons = output.get("stop_reasons") or [None] * len(rewards)
    has_lengths = sum(len(mask) for mask in masks if mask is not None) <= MAX_SUMMED_TOKENS
    return [
        {
            "group_index": getattr(trajectory, "instance_id", None),
            "rollout_id": getattr(trajectory, "repetition_id", None),
            "index": place if trajectory is None else None,
            "reward": _reward(reward),
            "response_length": None if response is None else len(response),
            "effective_response_length": sum(mask) if has_lengths and mask is not None else None,
            "status": None if reason is None else _STATUSES.get(str(reason), str(reason)),
        }
        for place, (trajectory, reward, response, mask, reason) in enumerate(
            zip(trajectories, rewards, responses, masks, reasons, strict=True)
        )
    ]


def _reward(reward: Any) -> Any:
    """Returns the reward of a row: rewards per token add up to it."""
    return sum(reward) if isinstance(reward, Sequence) and not isinstance(reward, str) else reward

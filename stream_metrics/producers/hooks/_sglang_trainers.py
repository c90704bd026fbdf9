"""What the hooks of miles and slime share: both call the same functions with `Sample` objects of the same form.

Written against `miles/utils/types.py`, `miles/ray/rollout.py`, `slime/utils/types.py` and `slime/ray/rollout.py`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final, overload

from stream_metrics.producers.client import RolloutProducer
from stream_metrics.producers.environment import PREFIX, shared

MAX_SUMMED_TOKENS: Final = 20_000_000
"""Loss masks summed in one call, which takes a tenth of a second; steps with more go without effective lengths."""

_log = logging.getLogger(__name__)
_said: set[str] = set()


def publish_rollout(rollout_id: Any, args: Any, samples: Any, producer: RolloutProducer | None = None) -> None:
    """The step's samples and its close marker are queued, or it is said why not. Never raises.

    Args:
        rollout_id: The trainer's word for the step.
        args: The trainer's arguments.
        samples: Its `Sample` objects, flat or in lists per group.
        producer: Where to; None takes the process's shared one.
    """
    try:
        producer = producer or _producer(args)
        if producer is None or _is_debug_replay(args):
            return
        flat = _flat(samples)
        if getattr(args, "reward_key", None) and "reward_key" not in _said:
            _said.add("reward_key")
            _log.info("rewards are objects here: start the sidecar with --reward-key %s", args.reward_key)
        producer.emit_step(_Fields(flat), step=rollout_id)
        producer.close_step(rollout_id)
    except Exception:
        _say("rollout", "a step's samples could not be sent; training goes on")


def publish_evaluation(rollout_id: Any, args: Any, data: Any, producer: RolloutProducer | None = None) -> None:
    """Each data set's samples and close marker are queued under the scope `eval/<data set>`. Never raises.

    Args:
        rollout_id: The trainer's word for the step.
        args: The trainer's arguments.
        data: Data set name to an object with `rewards`, and often `samples` and `truncated`.
        producer: Where to; None takes the process's shared one.
    """
    try:
        producer = producer or _producer(args)
        if producer is None or _is_debug_replay(args):
            return
        for name, result in data.items():
            scope = f"eval/{name}"
            producer.emit_step(_evaluated(result), step=rollout_id, scope=scope)
            producer.close_step(rollout_id, scope=scope)
    except Exception:
        _say("evaluation", "an evaluation's samples could not be sent; training goes on")


def _producer(args: Any) -> RolloutProducer | None:
    # The hooks run in one actor of the whole job.
    return shared.get(run_id=getattr(args, "wandb_run_id", None) or None, is_only_process=True)


def _is_debug_replay(args: Any) -> bool:
    if not getattr(args, "load_debug_rollout_data", None) or os.environ.get(f"{PREFIX}DEBUG_DATA") == "1":
        return False
    if "debug" not in _said:
        _said.add("debug")
        _log.warning("debug data that is loaded again isn't sent; %sDEBUG_DATA=1 sends it", PREFIX)
    return True


def _flat(samples: Any) -> list[Any]:
    flat: list[Any] = []
    for item in samples:
        if isinstance(item, list | tuple):
            flat.extend(_flat(item))
        else:
            flat.append(item)
    return flat


class _Fields(Sequence[dict[str, Any]]):
    """The samples' fields, each made when it is asked for: twenty thousand at once would keep the garbage collector
    busy.
    """

    def __init__(self, samples: Sequence[Any], rewards: Sequence[Any] | None = None) -> None:
        tokens = sum(_length(sample) for sample in samples if getattr(sample, "loss_mask", None) is not None)
        self._samples = samples
        self._rewards = rewards
        self._has_lengths = tokens <= MAX_SUMMED_TOKENS
        if not self._has_lengths and "lengths" not in _said:
            _said.add("lengths")
            _log.warning("a step has %d tokens: response lengths go without their loss masks, to save the time", tokens)

    def __len__(self) -> int:
        return len(self._samples)

    @overload
    def __getitem__(self, place: int) -> dict[str, Any]: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[dict[str, Any]]: ...

    def __getitem__(self, place: int | slice) -> dict[str, Any] | Sequence[dict[str, Any]]:
        if isinstance(place, slice):
            return [self[one] for one in range(*place.indices(len(self)))]
        made = _sample(self._samples[place], self._has_lengths)
        if self._rewards is not None:
            made["reward"] = self._rewards[place]
        return made


def _length(sample: Any) -> int:
    length = getattr(sample, "response_length", 0)
    return length if isinstance(length, int) else 0


def _sample(sample: Any, has_lengths: bool) -> dict[str, Any]:
    def get(name: str) -> Any:
        return getattr(sample, name, None)

    metadata = get("metadata")
    made = {
        "group_index": get("group_index"),
        "rollout_id": get("rollout_id"),
        "index": get("index"),
        "reward": get("reward"),
        "metadata": metadata,
        "status": get("status"),
        "response_length": get("response_length"),
        "weight_versions": get("weight_versions"),
        "data_source": metadata.get("data_source") if isinstance(metadata, Mapping) else None,
        "values": _values(sample),
    }
    if has_lengths:
        try:
            made["effective_response_length"] = get("effective_response_length")
        except Exception:  # a property of the trainer's, over a mask of whatever form
            _say("effective_response_length", "a sample's effective_response_length can't be read; it goes without")
    return made


def _values(sample: Any) -> dict[str, Any]:
    made: dict[str, Any] = {}
    elsewhere = getattr(sample, "non_generation_time", None)
    if elsewhere is not None:
        made["non_generation_time"] = elsewhere
    cache = getattr(sample, "prefix_cache_info", None)
    if cache is not None and getattr(cache, "total_prompt_tokens", None):
        made["prefix_cache_hit_rate"] = getattr(cache, "prefix_cache_hit_rate", None)
    speculation = getattr(sample, "spec_info", None)
    if speculation is not None and getattr(speculation, "spec_draft_token_num", None):
        made["spec_accept_rate"] = getattr(speculation, "spec_accept_rate", None)
    return made


def _evaluated(result: Mapping[str, Any]) -> Sequence[dict[str, Any]]:
    rewards = list(result.get("rewards") or ())
    samples = result.get("samples")
    truncated = list(result.get("truncated") or ())
    if samples is not None:
        flat = _flat(samples)
        # The trainer picked the rewards already, with a key that an evaluation may have of its own.
        return _Fields(flat, rewards if len(rewards) == len(flat) else None)
    statuses = ["truncated" if flag else "completed" for flag in truncated] if len(truncated) == len(rewards) else None
    return [
        {"index": index, "reward": reward, "status": statuses[index] if statuses else None}
        for index, reward in enumerate(rewards)
    ]


def _say(cause: str, message: str) -> None:
    if cause not in _said:
        _said.add(cause)
        _log.exception("%s (said once)", message)

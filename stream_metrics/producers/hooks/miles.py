"""The hooks of miles, for its command line:

    --custom-rollout-log-function-path stream_metrics.producers.hooks.miles.log_rollout
    --custom-eval-rollout-log-function-path stream_metrics.producers.hooks.miles.log_evaluation

miles calls them once a step in its one rollout actor, before training; what they return says whether its own logging
is left out.
"""

from __future__ import annotations

from typing import Any, Literal

from stream_metrics.producers.hooks import _sglang_trainers


def log_rollout(
    rollout_id: int, args: Any, samples: Any, rollout_extra_metrics: Any = None, rollout_time: Any = None
) -> Literal[False]:
    """Sends the step's samples and closes the step; returns False, so that miles logs as ever. Its `rollout_id` is
    our step.
    """
    _sglang_trainers.publish_rollout(rollout_id, args, samples)
    return False


def log_evaluation(rollout_id: int, args: Any, data: Any, extra_metrics: Any = None) -> Literal[False]:
    """Sends the samples of each data set under `eval/<data set>` and closes the step there; returns False."""
    _sglang_trainers.publish_evaluation(rollout_id, args, data)
    return False

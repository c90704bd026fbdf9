"""Results, with anything changed that a test wants."""

from __future__ import annotations

import json
from typing import Any

from stream_metrics.events import LogPlace, StepMetrics


def step_metrics(step: int, **fields: Any) -> StepMetrics:
    """Returns a complete, on-time result of the run `run` with a reward of 0.5."""
    scope = fields.get("scope", "rollout")
    made: dict[str, Any] = {
        "run_id": "run",
        "scope": scope,
        "attempt": 0,
        "complete": True,
        "reason": "closed",
        "correction": False,
        "late_samples": 0,
        "opened_unix_ms": None,
        "closed_unix_ms": None,
        "log": LogPlace(topic="t", partition=0, first_offset=0, close_offset=0),
        "metrics": {f"{scope}/episode_raw_reward": 0.5, f"{scope}/step": step},
    }
    return StepMetrics(step=step, **(made | fields))


def result(step: int, run: str = "r", scope: str = "rollout", **changes: Any) -> bytes:
    """Returns a result as it lies in the output topic."""
    metrics = {
        f"{scope}/num_training_samples": 4,
        f"{scope}/num_rollouts": 2,
        f"{scope}/episode_raw_reward": 0.5,
        f"{scope}/raw_reward": 0.75,
        f"{scope}/step": step,
    }
    made = {
        "type": "step_metrics",
        "schema": 1,
        "run_id": run,
        "scope": scope,
        "step": step,
        "attempt": 0,
        "complete": True,
        "reason": "closed",
        "correction": False,
        "late_samples": 0,
        "opened_unix_ms": 1,
        "closed_unix_ms": 1_700_000_000_000,
        "log": {"topic": "t", "partition": 0, "first_offset": 0, "close_offset": 1},
        "metrics": metrics | changes.pop("metrics", {}),
    }
    return json.dumps(made | changes).encode()

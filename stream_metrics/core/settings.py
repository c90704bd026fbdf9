"""The settings that change results. A hash of them travels with every committed offset."""

from __future__ import annotations

import hashlib
from typing import Literal

import msgspec

RolloutReward = Literal["mean", "sum", "last", "first", "max"]
LatePolicy = Literal["correct", "dead_letter"]


class FoldSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the fold needs to know beside the log.

    Attributes:
        reward_key: Component to read where a reward is an object; None reads no component.
        rollout_reward: The rule that makes one reward of a rollout's samples.
        late: What becomes of samples after their step's close.
        remember_steps: Higher steps of a run and scope that must have closed before a closed one is forgotten.
        remember_records: Offsets after which a run and scope not seen any more is forgotten where closed.
        max_samples: Samples held per partition; past it the oldest windows are evicted.
        max_runs: Runs and scopes tracked per partition.
        pass_threshold: Rollout reward from which a rollout passes.
        max_names: Names of one kind in one result; the rest are folded into `other`.
    """

    reward_key: str | None = None
    rollout_reward: RolloutReward = "mean"
    late: LatePolicy = "correct"
    remember_steps: int = 2
    remember_records: int = 100_000
    max_samples: int = 5_000_000
    max_runs: int = 128
    pass_threshold: float = 1.0
    max_names: int = 64

    def digest(self) -> str:
        """Returns 16 hex digits that change whenever one of the settings does."""
        return hashlib.blake2b(msgspec.json.encode(self), digest_size=8).hexdigest()

"""A seeded simulation of an agentic RL run with session compaction.

No Kafka, no clock: a step is a pure function of (seed, step), so that a run has any length, and any part of it can be
had again. What happens in it:
- A step has prompt groups of rollouts. A rollout uses up turns; each time its context is full the session is compacted,
  which ends one training sample and begins the next. All samples of a rollout carry the rollout's outcome as reward.
- At first the failures run long (the agent goes in circles), so the mean over samples reads too low. Later the policy
  learns to use long sessions for what it couldn't solve before, so it reads too high.
- Some rollouts are aborted and have no reward, some run out of turns and are truncated, and in some steps a straggler's
  last samples come after the step was closed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

STEPS: Final = 30
GROUPS: Final = 12
ROLLOUTS_PER_GROUP: Final = 8
MAX_SAMPLES_PER_ROLLOUT: Final = 8
CONTEXT_TOKENS: Final = 16_384
LATE_EVERY: Final = 7
"""Of so many steps, one has a straggler whose last samples come after the close."""

_MEAN_SAMPLES: Final = {"failed": (4.6, 2.0), "solved": (1.3, 3.9)}
"""Mean number of samples of a rollout at the begin and at the end of the learning curve, by outcome."""

_ABORTED_SHARE: Final = 0.02
_ENVIRONMENTS: Final = ("code-repair", "web-research")


@dataclass(frozen=True, slots=True)
class SimulatedSample:
    """A training sample and the time within its step at which it is done, from 0 to 1."""

    done_at: float
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class SimulatedStep:
    """All that happens in a step.

    Attributes:
        step: Its number.
        samples: In the order in which they are done, so that siblings and groups are mixed.
        late: Those that are done only after the step is closed.
        dropped: What the trainer filtered before it made samples of it: reason to count.
    """

    step: int
    samples: tuple[SimulatedSample, ...]
    late: tuple[SimulatedSample, ...] = ()
    dropped: dict[str, int] = field(default_factory=dict)

    @property
    def all_fields(self) -> list[dict[str, Any]]:
        """The fields of all samples, the late ones last."""
        return [one.fields for one in (*self.samples, *self.late)]


def simulate_step(seed: int, step: int) -> SimulatedStep:
    """Returns the step, the same for the same arguments.

    Args:
        seed: Names the run.
        step: Its number; from `STEPS` on the policy learns no more.
    """
    chance = random.Random(f"{seed}/{step}")
    learned = _learned(step)
    samples: list[SimulatedSample] = []
    dropped: dict[str, int] = {}
    for group in range(GROUPS):
        # A prompt's difficulty is its group's: it is what the rollouts of a group share.
        ease = chance.gauss(-0.75 + 2.0 * learned, 0.7)
        environment = chance.choice(_ENVIRONMENTS)
        for rollout in range(ROLLOUTS_PER_GROUP):
            samples += _rollout(chance, step, group, rollout, environment, ease, learned)
    if chance.random() < 0.25:
        dropped["filtered"] = chance.randint(1, 6)
    samples.sort(key=lambda one: one.done_at)
    late: list[SimulatedSample] = []
    if step % LATE_EVERY == LATE_EVERY - 2:
        late = _straggle(samples)
    return SimulatedStep(step, tuple(samples), tuple(late), dropped)


def direct_rewards(samples: Iterable[Mapping[str, Any]]) -> tuple[float, float]:
    """Returns the mean over samples and the mean over rollouts of samples' rewards, straight from the definitions.

    This knows nothing of the sidecar, so that the demo can compare.
    """
    by_rollout: dict[tuple[Any, Any], list[float]] = {}
    for one in samples:
        if one["reward"] is not None:
            by_rollout.setdefault((one["group_index"], one["rollout_id"]), []).append(one["reward"])
    rewards = [reward for siblings in by_rollout.values() for reward in siblings]
    means = [math.fsum(siblings) / len(siblings) for siblings in by_rollout.values()]
    if not rewards:
        return 0.0, 0.0
    return math.fsum(rewards) / len(rewards), math.fsum(means) / len(means)


def _learned(step: int) -> float:
    """The learning curve: from 0 to 1 over `STEPS`, slow at both ends."""
    begin, end = _logistic(-3.0), _logistic(3.0)
    return (_logistic(6.0 * min(step, STEPS - 1) / (STEPS - 1) - 3.0) - begin) / (end - begin)


def _logistic(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x))


def _rollout(
    chance: random.Random, step: int, group: int, rollout: int, environment: str, ease: float, learned: float
) -> list[SimulatedSample]:
    is_solved = chance.random() < _logistic(ease)
    is_aborted = chance.random() < _ABORTED_SHARE
    begin, end = _MEAN_SAMPLES["solved" if is_solved else "failed"]
    mean = begin + (end - begin) * learned
    # Log-normal lengths: most sessions are short, some go on and on.
    length = mean * math.exp(chance.gauss(-0.125, 0.5))
    count = min(MAX_SAMPLES_PER_ROLLOUT, max(1, round(length)))
    is_truncated = not is_solved and length > MAX_SAMPLES_PER_ROLLOUT
    reward = None if is_aborted else 1.0 if is_solved else 0.0
    pace = chance.uniform(0.9, 1.1) / (MAX_SAMPLES_PER_ROLLOUT * 1.2)
    begun_at = chance.uniform(0.0, 0.08)
    made = []
    for part in range(count):
        is_last = part == count - 1
        status = "aborted" if is_aborted else "truncated" if is_truncated and is_last else "completed"
        tokens = chance.randint(600, CONTEXT_TOKENS // 2) if is_last else chance.randint(CONTEXT_TOKENS // 2, 15_000)
        fields = {
            "group_index": group,
            "rollout_id": rollout,
            "reward": reward,
            "response_length": tokens,
            "status": status,
            "data_source": environment,
            "weight_versions": [step],
        }
        made.append(SimulatedSample(min(1.0, begun_at + (part + 1) * pace), fields))
    return made


def _straggle(samples: list[SimulatedSample]) -> list[SimulatedSample]:
    """Takes the last samples of the step's longest rollout out of the list, and returns them."""
    longest = samples[-1].fields
    siblings = [
        one
        for one in samples
        if (one.fields["group_index"], one.fields["rollout_id"]) == (longest["group_index"], longest["rollout_id"])
    ]
    late = siblings[-max(1, len(siblings) // 2) :]
    for one in late:
        samples.remove(one)
    return late

"""Plain samples as rows of five numbers: group, rollout, reward, length, status.

Plain is what most samples are: whole numbers for group and rollout, and nothing beside reward, length, status and a
`sample_id`, which only tells duplicates. Their numbers are taken out while the events, which lie all over the heap, are
still in a core's cache; rows are small and lie side by side, so that sorting them to their windows costs next to
nothing, however many these are.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from stream_metrics.core.named import number_of
from stream_metrics.core.packed import NOT_PACKED, finite, integers, some_integers
from stream_metrics.events import Identifier, SampleFields

ABSENT_LENGTH: Final = -(2**63)
_TOO_LONG: Final = -1
"""What stands in a column for an integer past 64 bits: as invalid as any other negative length."""

_COMPLETED: Final = 1
TRUNCATED: Final = 2
ABORTED: Final = 3
FAILED: Final = 4
_OTHER_STATUS: Final = 5
_STATUS_CODES: Final[dict[str | None, int]] = {
    None: 0,
    "completed": _COMPLETED,
    "truncated": TRUNCATED,
    "aborted": ABORTED,
    "failed": FAILED,
}

GROUP, ROLLOUT, REWARD, LENGTH, STATUS = range(5)
ROW_BYTES: Final = 5 * 8

Rows = npt.NDArray[np.int64]
"""(samples, 5) the reward as the bits of a double."""


def is_plain(samples: Sequence[SampleFields]) -> bool:
    """Returns whether no sample has more than its identity, a reward, a length and a status, as most have."""
    for sample in samples:  # `any` over a generator takes twice as long
        if (
            sample.metadata is not None
            or sample.position is not None
            or sample.effective_response_length is not None
            or sample.weight_versions is not None
            or sample.data_source is not None
            or sample.values is not None
        ):
            return False
    return True


def ids_of(samples: Sequence[SampleFields]) -> list[Identifier | None] | None:
    """Returns the `sample_id` of each sample, or None where none has one."""
    for sample in samples:  # half the time of a list that nobody needs
        if sample.sample_id is not None:
            return [one.sample_id for one in samples]
    return None


def rows_of(samples: Sequence[SampleFields]) -> Rows | None:
    """Returns a row for each sample, or None where one of them isn't plain.

    Cost: 0.15 µs a sample, and next to nothing where it is the first that isn't plain.
    """
    if type(samples[0].rollout_id) is not int or not is_plain(samples):
        return None
    rows = np.empty((len(samples), 5), dtype=np.int64)
    try:
        rows[:, GROUP] = integers([sample.group_index for sample in samples])
        rows[:, ROLLOUT] = integers([sample.rollout_id for sample in samples])
    except NOT_PACKED:  # a text, or none; a number past 64 bits
        return None
    rewards = [sample.reward for sample in samples]
    reward: Sequence[float] | None = finite(rewards)
    if reward is None:
        for one in rewards:
            if isinstance(one, dict):
                return None
        reward = list(map(number_of, rewards))
    rows.view(np.float64)[:, REWARD] = reward
    rows[:, LENGTH] = lengths_of([sample.response_length for sample in samples])
    rows[:, STATUS] = statuses_of(samples)
    return rows


def lengths_of(lengths: Sequence[int | None]) -> array[int]:
    """Returns the lengths with `ABSENT_LENGTH` for None; whoever sends that number itself sends none."""
    made = some_integers(lengths)
    if made is not None:
        return made
    return array("q", [ABSENT_LENGTH if one is None else one if _fits(one) else _TOO_LONG for one in lengths])


def _fits(number: int) -> bool:
    return -(2**63) <= number < 2**63


def statuses_of(samples: Sequence[SampleFields]) -> bytearray:
    """Returns a code for the status of each sample, 0 for none."""
    codes = bytearray([_COMPLETED]) * len(samples)
    for place in [place for place, sample in enumerate(samples) if sample.status != "completed"]:
        codes[place] = _STATUS_CODES.get(samples[place].status, _OTHER_STATUS)
    return codes

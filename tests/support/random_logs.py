"""Random logs of all that a partition may hold, dense in what is hard to get right."""

from __future__ import annotations

import random
from typing import Any

from stream_metrics.testing import MemoryLog, close, sample, samples


def random_log(rng: random.Random) -> MemoryLog:
    log = MemoryLog()
    runs = [f"r{n}" for n in range(rng.choice([1, 1, 2, 4, 6]))]
    scopes = ["rollout"] if rng.random() < 0.7 else ["rollout", "eval/a"]
    attempts = dict.fromkeys(runs, 0)
    at = dict.fromkeys(runs, 0)
    newest: dict[tuple[str, str, int, int], int] = {}
    spread = rng.choice([0, 1, 3, 8])
    for _ in range(rng.randrange(5, 90)):
        run = rng.choice(runs)
        if rng.random() < 0.3:
            at[run] += 1
        if rng.random() < 0.03:
            attempts[run] += 1
            at[run] = max(0, at[run] - rng.randrange(4))
        attempt = max(0, attempts[run] - (rng.random() < 0.05))
        step = max(0, at[run] - rng.randrange(spread + 1))
        if rng.random() < 0.02:
            step = 10**12 + rng.randrange(3)
        where = {"run_id": run, "scope": rng.choice(scopes), "attempt": attempt}
        key = (run, where["scope"], attempt, step)
        kind = rng.random()
        if kind < 0.55:
            event = sample(step, _reward(rng), **where, **_ids(rng))
        elif kind < 0.65:
            event = samples(step, [{"reward": _reward(rng), **_ids(rng)} for _ in range(rng.randrange(4))], **where)
        elif kind < 0.9:
            event = close(step, **where, producer=rng.choice(["", "", "a", "b"]), producers=rng.choice([1, 1, 1, 2]))
            if rng.random() < 0.4:
                event["expected_samples"] = rng.randrange(4)
            if rng.random() < 0.2:
                event["dropped"] = {"aborted": rng.randrange(3)}
        elif kind < 0.97:
            event = close(step, **where, reason=rng.choice(["timeout", "timeout", "data_lost"]))
            if rng.random() < 0.8:
                event["seen_offset"] = newest.get(key, 0) + rng.choice([0, 0, -1])
            log.append(event, skip_offsets=rng.choice([0, 0, 2]), unix_ms=_clock(rng))
            continue
        else:
            log.append(rng.choice([b"poison", None, b'{"type":"sample","step":-1}']))
            continue
        newest[key] = log.append(event, skip_offsets=rng.choice([0, 0, 0, 1]), unix_ms=_clock(rng)).offset()
    return log


def _reward(rng: random.Random) -> float | bool | None:
    return rng.choice([0.1, 0.7, 1 / 3, True, None, 1e308])


def _clock(rng: random.Random) -> int | None:
    return rng.choice([None, -1, 0, 1_700_000_000_000 + rng.randrange(10**6)])


def _ids(rng: random.Random) -> dict[str, Any]:
    ids: dict[str, Any] = {"rollout_id": rng.randrange(3), "group_index": rng.choice([None, 0, 1])}
    if rng.random() < 0.3:
        ids["sample_id"] = rng.randrange(3)
    if rng.random() < 0.2:
        ids["metadata"] = {"raw_reward": _reward(rng)}
    if rng.random() < 0.2:
        ids["position"] = rng.randrange(5)
    if rng.random() < 0.2:
        ids["weight_versions"] = rng.choice([[1], ["2"], [3, 2], ["1", 1], ["a"], [], [-1], [None, 4]])
    if rng.random() < 0.5:
        ids |= {"response_length": rng.randrange(9), "status": rng.choice(["completed", "aborted", "other", None])}
    return ids

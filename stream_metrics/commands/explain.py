"""`stream-metrics explain`: where the numbers of one step of a log come from. For the day somebody doubts the curve."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import groupby, islice
from typing import BinaryIO, Final, TypeVar

import msgspec

from stream_metrics.config import Settings
from stream_metrics.core.explain import ExplainedGroup, ExplainedRollout, ExplainingFold, Explanation
from stream_metrics.core.record import LogRecord
from stream_metrics.events import DEFAULT_SCOPE
from stream_metrics.exit_codes import ExitCode
from stream_metrics.log_lines import read_line
from stream_metrics.sidecar import logs

_BATCH: Final = 1_000
_SAMPLES_SHOWN: Final = 12

_T = TypeVar("_T")


def main(
    settings: Settings,
    path: str,
    step: int,
    run_id: str | None = None,
    scope: str | None = None,
    limit: int = 20,
    is_json: bool = False,
) -> int:
    """Folds a log and explains one step of it, as of its last result; as it stands where it has none.

    Args:
        settings: Those of `run` that change results.
        path: The log in JSON lines, or `-` for standard input.
        step: The step.
        run_id: The run; None for all that have the step.
        scope: The scope; None for `rollout`.
        limit: Groups, and rollouts of a group, shown as text; 0 for all.
        is_json: Whether to write JSON lines, with everything, rather than text.
    """
    logs.setup(settings.log_format, settings.log_level)
    scope = scope or DEFAULT_SCOPE
    folds: dict[tuple[str, int], ExplainingFold] = {}
    try:
        if path == "-":
            _fold(sys.stdin.buffer, settings, folds, step, run_id, scope)
        else:
            with open(path, "rb") as source:
                _fold(source, settings, folds, step, run_id, scope)
    except OSError as error:
        logs.error("can't read the log", file=error.filename, error=error.strerror)
        return ExitCode.WRONG_SETTINGS
    explained = {key: one for fold in folds.values() for key, one in fold.explained.items()}
    if not explained:
        steps = sorted(set().union(*(fold.steps for fold in folds.values())))
        logs.error(f"no such step in the log; {_what_there_is(steps)}", run_id=run_id, scope=scope, step=step)
        return ExitCode.WRONG_SETTINGS
    for _, one in sorted(explained.items()):
        text = msgspec.json.encode(one) + b"\n" if is_json else "".join(_lines(one, limit)).encode()
        sys.stdout.buffer.write(text)
    sys.stdout.buffer.flush()
    return ExitCode.OK


def _fold(
    source: BinaryIO,
    settings: Settings,
    folds: dict[tuple[str, int], ExplainingFold],
    step: int,
    run_id: str | None,
    scope: str,
) -> None:
    for key, records in groupby(_records(source), lambda record: (record.topic(), record.partition())):
        fold = folds.get(key)
        if fold is None:
            fold = ExplainingFold(settings.fold(), *key, step=step, run_id=run_id, scope=scope)
            folds[key] = fold
        while row := list(islice(records, _BATCH)):
            fold.feed(row)
            fold.take_effects()
    for fold in folds.values():
        fold.end()


def _records(source: BinaryIO) -> Iterator[LogRecord]:
    for number, text in enumerate(source, 1):
        if text.strip():
            yield read_line(text, number)


def _what_there_is(steps: Iterable[tuple[str, str, int]]) -> str:
    """Returns which steps there are, by run and scope."""
    ranges = []
    for (run_id, scope), found in groupby(steps, lambda one: one[:2]):
        numbers = [number for _, _, number in found]
        ranges.append(f"run {run_id!r} scope {scope!r}: {len(numbers)} of steps {numbers[0]} to {numbers[-1]}")
    return "; ".join(ranges[:10]) or "it has no steps"


def _lines(one: Explanation, limit: int) -> Iterator[str]:
    state = "still open"
    if one.is_closed:
        state = "closed" if one.reason == "closed" else f"closed by {one.reason}"
    expected = "" if one.expected_samples is None else f" of {one.expected_samples} expected"
    samples = one.metrics[f"{one.scope}/num_training_samples"]
    yield f"step {one.step} of run {one.run_id!r}, scope {one.scope}, attempt {one.attempt}: {state}, "
    yield f"{'complete' if one.is_complete else 'incomplete'}, {samples} samples{expected}, {one.late_samples} late\n"
    yield f"rewards are read from {one.reward_source}; a rollout's is the {one.rule} of its samples'\n\n"
    for name, number in one.metrics.items():
        yield f"  {name:<48} {number!r}\n"
    yield from _odd_lines(one)
    for group in _first(one.groups, limit):
        yield f"\n{_group_line(group)}\n"
        for rollout in _first(group.rollouts, limit):
            yield f"  {_rollout_line(rollout, one)}\n"
        yield from _left_out(len(group.rollouts), limit, "rollouts", "  ")
    yield from _left_out(len(one.groups), limit, "groups", "\n")


def _odd_lines(one: Explanation) -> Iterator[str]:
    flat = [group for group in one.groups if group.is_flat and group.group_index is not None]
    if flat:
        yield f"\nno spread, so nothing to learn: {_some([_name(group.group_index) for group in flat])}\n"
    for oddity in ("missing", "not finite"):
        numbers = [
            f"#{sample.number}"
            for group in one.groups
            for rollout in group.rollouts
            for sample in rollout.samples
            if sample.oddity == oddity
        ]
        if numbers:
            yield f"\nreward {oddity}, left out: {_some(numbers)}\n"
    disagreeing = [
        _rollout_name(rollout, group) for group in one.groups for rollout in group.rollouts if rollout.is_disagreeing
    ]
    if disagreeing:
        yield f"\nsamples of one rollout disagree: {_some(disagreeing)}\n"


def _group_line(group: ExplainedGroup) -> str:
    scored = sum(rollout.reward is not None for rollout in group.rollouts)
    flat = ", no spread" if group.is_flat else ""
    numbers = "no reward" if group.mean is None else f"mean {group.mean!r}, std {group.std!r}{flat}"
    return f"{_name(group.group_index)}: {scored} of {len(group.rollouts)} rollouts scored, {numbers}"


def _rollout_line(rollout: ExplainedRollout, one: Explanation) -> str:
    shown = [
        f"#{sample.number} {sample.oddity if sample.reward is None else repr(sample.reward)}"
        for sample in rollout.samples[:_SAMPLES_SHOWN]
    ]
    if len(rollout.samples) > _SAMPLES_SHOWN:
        shown.append(f"and {len(rollout.samples) - _SAMPLES_SHOWN} more")
    reward = "no reward" if rollout.reward is None else repr(rollout.reward)
    return f"{_identity(rollout)}: {reward} = {one.rule} of {', '.join(shown)}"


def _identity(rollout: ExplainedRollout) -> str:
    if rollout.kind == "rollout":
        return f"rollout {rollout.identity!r}"
    return f"sample with index {rollout.identity!r}" if rollout.kind == "sample" else "sample without an id"


def _rollout_name(rollout: ExplainedRollout, group: ExplainedGroup) -> str:
    return f"{_identity(rollout)} of {_name(group.group_index)}"


def _name(group_index: int | str | None) -> str:
    return "no group" if group_index is None else f"group {group_index!r}"


def _some(names: list[str]) -> str:
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")


def _first(items: list[_T], limit: int) -> list[_T]:
    return items[:limit] if limit else items


def _left_out(count: int, limit: int, what: str, before: str) -> Iterator[str]:
    if limit and count > limit:
        yield f"{before}{count - limit} more {what}\n"

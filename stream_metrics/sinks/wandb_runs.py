"""Runs of W&B's that the sink holds open: one of its own, or the trainer's, which it joins."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from stream_metrics.sinks.wandb_files import RunFile

_SAMPLES: Final = 1_000_000  # more than a scope has steps: W&B gives all where it has no more than it's asked for
_OFFSET: Final = "result_offset"


class OwnRun:
    """A run that nobody else writes to.

    Args:
        tool: It.
        next_row: The lowest `_step` that a row to come may have.
        values: The last value of each key.
        file: What the library writes of it.

    Attributes:
        has_unsure: Whether rows were logged that W&B isn't known to have.
    """

    def __init__(self, tool: Any, next_row: int, values: Mapping[str, Any], file: RunFile) -> None:
        self.tool = tool
        self._next_row = self._next_sure_row = next_row
        self._file = file
        self._scopes: set[str] = set()
        self._before = {name: value for name, value in values.items() if name.endswith("/step")}
        for name in self._before:
            self._define(name.removesuffix("/step"))  # a run that is resumed forgets its x-axes

    @property
    def has_unsure(self) -> bool:
        return self._next_row > self._next_sure_row

    def has(self, scope: str, offset: int) -> bool:
        """Whether a result was logged here, in this life or before."""
        return offset < self._next_row

    def last_step(self, scope: str) -> int:
        """Returns the step of the last point that W&B had of a scope when the run was opened; -1 for none."""
        step = self._before.get(f"{scope}/step")
        return int(step) if isinstance(step, int | float) else -1

    def log(self, scope: str, numbers: Mapping[str, float], step: int, offset: int, *, is_point: bool) -> None:
        """Gives W&B a row.

        Args:
            scope: The scope.
            numbers: By name, without the scope.
            step: The step.
            offset: The result's.
            is_point: Whether it's the step's point, or corrects it.
        """
        place = scope if is_point else f"corrected/{scope}"
        self._define(place)
        row = {f"{place}/{name}": number for name, number in numbers.items()}
        self.tool.log({**row, f"{place}/step": step}, step=offset, commit=True)
        self._next_row = offset + 1

    def finish(self) -> None:
        self.tool.finish()

    def lacks_rows_of(self, before: OwnRun) -> bool:
        """Whether W&B shows less here than was logged to the same run before it was finished."""
        return self._next_row < before._next_row

    def look_into_file(self) -> None:
        """What is in the file is sure."""
        for row in self._file.rows():
            self._next_sure_row = max(self._next_sure_row, row.step + 1)

    def _define(self, scope: str) -> None:
        """The step is the x-axis of a scope."""
        if scope not in self._scopes:
            self.tool.define_metric(f"{scope}/step", hidden=True)
            self.tool.define_metric(f"{scope}/*", step_metric=f"{scope}/step")
            self._scopes.add(scope)


class JoinedRun(OwnRun):
    """The trainer's run, in shared mode: rows have no place of ours in it, and what we define is lost.

    So each row says the result's offset, and W&B is asked for those that it has. All keys begin with the scope, where
    the trainer's own x-axis holds.

    Args:
        tool: It.
        history: Returns the rows that have all of some keys.
    """

    def __init__(self, tool: Any, history: Callable[..., Sequence[Mapping[str, Any]]]) -> None:
        super().__init__(tool, 0, {}, RunFile(Path(), None))
        self._history = history
        self._offsets: dict[str, set[int]] = {}
        self._last_steps: dict[str, int] = {}
        self._given: set[tuple[str, int]] = set()

    @property
    def has_unsure(self) -> bool:
        return bool(self._given)

    def has(self, scope: str, offset: int) -> bool:
        return offset in self._known(scope) or (scope, offset) in self._given

    def last_step(self, scope: str) -> int:
        self._known(scope)
        return self._last_steps[scope]

    def log(self, scope: str, numbers: Mapping[str, float], step: int, offset: int, *, is_point: bool) -> None:
        place = scope if is_point else f"{scope}/corrected"
        row = {f"{place}/{name}": number for name, number in numbers.items()}
        self.tool.log({**row, f"{scope}/step": step, f"{place}/{_OFFSET}": offset})
        self._given.add((scope, offset))

    def lacks_rows_of(self, before: OwnRun) -> bool:
        assert isinstance(before, JoinedRun)
        return any(offset not in self._known(scope) for scope, offset in before._given)

    def _known(self, scope: str) -> set[int]:
        if scope not in self._offsets:
            points = list(self._rows(scope, scope))
            corrections = self._rows(scope, f"{scope}/corrected")
            self._last_steps[scope] = max((step for step, _ in points), default=-1)
            self._offsets[scope] = {offset for _, offset in points} | {offset for _, offset in corrections}
        return self._offsets[scope]

    def _rows(self, scope: str, place: str) -> Iterator[tuple[int, int]]:
        keys = [f"{scope}/step", f"{place}/{_OFFSET}"]
        for row in self._history(samples=_SAMPLES, keys=keys, pandas=False):
            yield int(row[keys[0]]), int(row[keys[1]])

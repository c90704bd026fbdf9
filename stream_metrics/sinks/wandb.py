"""Results as W&B runs: one for each run, attempt and partition, grouped by run, found again by an id made of these.

- A row's `_step` is the result's offset, and W&B takes no row below its last: what comes again, W&B itself has. The
  step is the x-axis, by `define_metric`.
- A row can't be changed. So a step's first result is its point, and what corrects it goes to keys of the same names
  under `corrected/`.
- `finish` is how W&B takes what was logged at once, but it says nothing where W&B refused it. So a run is finished
  and resumed again, and how far it is then is what W&B has.
- Offline nothing is finished: the library writes the file every moment, and it's read until the rows are in it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from pathlib import Path
from threading import Thread
from typing import Any, Final

from stream_metrics.sinks.base import Delivery, Sink, SinkOutageError, SinkRefusedError, library
from stream_metrics.sinks.wandb_files import RunFile

_PROJECT: Final = "stream-metrics"
_MODES: Final = ("online", "offline")
_MAX_OPEN_RUNS: Final = 16
_MAX_TEXT: Final = 128  # of a run's name and group
_MAX_NAME: Final = 200
_ANSWER_SECONDS: Final = 20.0
_FILE_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 0.02
_ODD: Final = re.compile(r'[.*\\"`\x00-\x1f\x7f]')
"""A dot means a key within a key where W&B looks for the x-axis, and a star any name."""

_KEY: Final = re.compile(r"not logged in|permission|api key|\b40[13]\b", re.IGNORECASE)
_SETTINGS: Final[Mapping[str, Any]] = {
    "console": "off",
    "disable_git": True,
    "save_code": False,
    "init_timeout": _ANSWER_SECONDS,
    "finish_timeout": _ANSWER_SECONDS,
    "finish_timeout_raises": True,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_graphql_retry_max": 1,
    "x_graphql_timeout_seconds": 10.0,
    "x_save_requirements": False,
    "x_transaction_log_flush_interval": 0.1,
}
"""A sink's runs are numbers alone: nothing of its machine, its code or what it prints. The consumer tries on where W&B
is away, and hears of a stop, so the library needn't for long."""

_log = logging.getLogger(__name__)


class WandbSink(Sink):
    """Logs rows through W&B's library.

    Args:
        project: The project; None for `WANDB_PROJECT`, or `stream-metrics`.
        entity: The user or team it belongs to; None for W&B's own setting.
        mode: online or offline; None for `WANDB_MODE`, or online.
        directory: Where offline runs are kept; None for `WANDB_DIR`, or the current one.
    """

    def __init__(
        self,
        project: str | None = None,
        entity: str | None = None,
        mode: str | None = None,
        directory: str | None = None,
    ) -> None:
        self._project = project or os.environ.get("WANDB_PROJECT") or _PROJECT
        self._entity = entity
        self._mode = mode or os.environ.get("WANDB_MODE") or "online"
        self._directory = Path(directory or os.environ.get("WANDB_DIR") or ".")
        self._is_offline = self._mode == "offline"
        self._wandb: Any = None
        self._record: Any = None
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._runs: dict[tuple[str, int, int], _Run] = {}  # those heard of last come last
        self._series: dict[tuple[str, str], _Series] = {}

    def setup(self) -> None:
        if self._mode not in _MODES:
            raise SinkRefusedError(f"the mode (--mode, WANDB_MODE) must be online or offline, not {self._mode!r}")
        os.environ.setdefault("WANDB_SILENT", "true")  # what it has to say is said in our lines
        self._wandb = library("wandb", "wandb")
        self._record = library("wandb.proto.wandb_internal_pb2", "wandb").Record
        if self._is_offline:
            try:
                self._directory.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise SinkRefusedError(f"{str(self._directory)!r} can't be made: {error.strerror}") from None
            return
        if self._scratch is None:
            self._scratch = tempfile.TemporaryDirectory(prefix="stream-metrics-wandb-")
        with self._asking():
            self._wandb.setup(settings=self._settings())
            if not self._wandb.login(prompt=False, verify=True):
                raise _refused("there is none")

    def recall(self, delivery: Delivery) -> None:
        self._is_point(delivery, None)

    def write(self, batch: Sequence[Delivery]) -> None:
        for delivery in batch:
            run = self._run(delivery)
            is_point = self._is_point(delivery, run)
            if delivery.offset >= run.next_row:
                self._log(run, delivery, is_point=is_point)

    def flush(self) -> None:
        for key in [key for key, run in self._runs.items() if run.next_row > run.next_sure_row]:
            self._settle(key)

    def close(self) -> None:
        if self._wandb is not None:
            self._abandon()
        if self._scratch is not None:
            self._scratch.cleanup()
            self._scratch = None

    def _is_point(self, delivery: Delivery, run: _Run | None) -> bool:
        """Whether a result is its step's first one, and notes it.

        A correction whose first result is compacted away is the point, unless W&B shows that it had that step before.
        """
        result = delivery.result
        series = self._series.setdefault((result.run_id, result.scope), _Series())
        if result.attempt > series.attempt:
            series.attempt = result.attempt
            series.first_offsets.clear()
        if result.correction and run is not None and result.step not in series.first_offsets:
            if result.step <= run.last_step(_name(result.scope)):
                series.first_offsets[result.step] = -1
        return series.first_offsets.setdefault(result.step, delivery.offset) == delivery.offset

    def _log(self, run: _Run, delivery: Delivery, *, is_point: bool) -> None:
        result = delivery.result
        scope = _name(result.scope) if is_point else f"corrected/{_name(result.scope)}"
        row = {
            f"{scope}/{_name(name.removeprefix(f'{result.scope}/'))}": number for name, number in result.metrics.items()
        }
        row[f"{scope}/step"] = result.step
        with self._asking():
            run.define(scope)
            run.tool.log(row, step=delivery.offset, commit=True)
        run.next_row = delivery.offset + 1

    def _run(self, delivery: Delivery) -> _Run:
        key = (delivery.result.run_id, delivery.result.attempt, delivery.partition)
        if key in self._runs:
            self._runs[key] = self._runs.pop(key)
            return self._runs[key]
        while len(self._runs) >= _MAX_OPEN_RUNS:
            oldest = next(iter(self._runs))
            if self._runs[oldest].next_row > self._runs[oldest].next_sure_row:
                self._settle(oldest)
            with self._asking():
                self._finish(self._runs.pop(oldest))
        run = self._runs[key] = self._open(key)
        return run

    def _open(self, key: tuple[str, int, int]) -> _Run:
        """Begins a run, or goes on with it where W&B knows it."""
        run_id, attempt, partition = key
        own_id = blake2b(json.dumps(key).encode(), digest_size=16).hexdigest()
        rows: dict[str, Any] = {}
        next_row = 0
        if self._is_offline:
            for path in sorted(self._directory.glob(f"wandb/offline-run-*/run-{own_id}.wandb")):
                for row in RunFile(path, self._record).rows():
                    next_row = max(next_row, row.step + 1)
                    rows |= row.values
        with self._asking():
            tool = self._wandb.init(
                project=self._project,
                entity=self._entity,
                id=own_id,
                name=run_id[:_MAX_TEXT] + (f" attempt {attempt}" if attempt else ""),
                group=run_id[:_MAX_TEXT],
                job_type="stream_metrics",
                config={"run_id": run_id, "attempt": attempt, "partition": partition},
                allow_val_change=True,
                resume="allow",
                reinit="create_new",
                mode=self._mode,
                dir=str(self._directory) if self._is_offline else self._scratch and self._scratch.name,
                settings=self._settings(),
            )
            if not self._is_offline:
                next_row = int(tool.starting_step)
                rows = dict(tool.summary)
            run = _Run(tool, next_row, rows, RunFile(Path(tool.settings.sync_file), self._record))
            for scope in run.scopes_before():
                run.define(scope)  # a run that is resumed forgets its x-axes
        return run

    def _settings(self) -> Any:
        # Those that begin with x_ may go with any version.
        known = self._wandb.Settings.model_fields
        return self._wandb.Settings(**{name: value for name, value in _SETTINGS.items() if name in known})

    def _settle(self, key: tuple[str, int, int]) -> None:
        """W&B has all rows of a run."""
        run = self._runs[key]
        if self._is_offline:
            self._await_file(run)
        else:
            with self._asking():
                self._finish(run)
            del self._runs[key]
            again = self._runs[key] = self._open(key)
            if again.next_row < run.next_row:
                self._abandon()
                raise SinkOutageError(f"W&B didn't take what was logged to run {key[0]!r}")
        run.next_sure_row = run.next_row

    def _await_file(self, run: _Run) -> None:
        until = time.monotonic() + _FILE_SECONDS
        while True:
            for row in run.file.rows():
                run.next_sure_row = max(run.next_sure_row, row.step + 1)
            if run.next_sure_row >= run.next_row:
                return
            if time.monotonic() >= until:
                self._abandon()
                raise SinkOutageError("what was logged doesn't come to W&B's file: is the disk full?")
            time.sleep(_LOOK_SECONDS)

    def _finish(self, run: _Run) -> None:
        run.tool.finish()
        if not self._is_offline:
            shutil.rmtree(run.tool.settings.sync_dir, ignore_errors=True)

    def _abandon(self) -> None:
        """No run is open. What W&B has of each it is asked again."""
        runs, self._runs = list(self._runs.values()), {}
        with ThreadPoolExecutor(_MAX_OPEN_RUNS) as pool:  # together, since each may wait for a W&B that is away
            for done in [pool.submit(self._finish, run) for run in runs]:
                done.exception()
        # Without it a run whose beginning failed would be "in use" for ever. It waits for requests under way.
        ending = Thread(target=self._tear_down, daemon=True)
        ending.start()
        ending.join(_ANSWER_SECONDS)

    def _tear_down(self) -> None:
        with contextlib.suppress(Exception):
            self._wandb.teardown()

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        """What the library raises, which has no common class, becomes one of the errors that the consumer knows."""
        try:
            yield
        except SinkRefusedError:
            raise
        except Exception as error:
            text = str(error).strip() or type(error).__name__
            self._abandon()
            raise _refused(text) if _KEY.search(text) else SinkOutageError(f"W&B: {text}") from None


class _Run:
    """An open run of W&B's.

    Attributes:
        tool: It.
        next_row: The lowest `_step` that a row to come may have.
        next_sure_row: The same of what W&B is known to have.
        file: What the library writes of it.
    """

    def __init__(self, tool: Any, next_row: int, rows: Mapping[str, Any], file: RunFile) -> None:
        self.tool = tool
        self.next_row = self.next_sure_row = next_row
        self.file = file
        self._scopes: set[str] = set()
        self._before = {name: value for name, value in rows.items() if name.endswith("/step")}

    def define(self, scope: str) -> None:
        """The step is the x-axis of a scope."""
        if scope not in self._scopes:
            self.tool.define_metric(f"{scope}/step", hidden=True)
            self.tool.define_metric(f"{scope}/*", step_metric=f"{scope}/step")
            self._scopes.add(scope)

    def scopes_before(self) -> list[str]:
        """Returns the scopes, those of corrections too, of which there were rows when the run was opened."""
        return [name.removesuffix("/step") for name in self._before]

    def last_step(self, scope: str) -> int:
        """Returns the step of the last point that W&B had of a scope when the run was opened; -1 for none."""
        step = self._before.get(f"{scope}/step")
        return int(step) if isinstance(step, int | float) else -1


class _Series:
    """Where the first result of each step of a run and scope is, for the newest attempt."""

    def __init__(self) -> None:
        self.attempt = 0
        self.first_offsets: dict[int, int] = {}


def _refused(text: str) -> SinkRefusedError:
    return SinkRefusedError(
        f"W&B takes no results with this key: {text}; set WANDB_API_KEY (and WANDB_BASE_URL for a server of your own), "
        "or use --mode offline"
    )


def _name(text: str) -> str:
    """Returns a part of a key that W&B takes; one that had to be changed ends in a hash of what it was."""
    made = _ODD.sub("_", text)
    if made != text or len(made) > _MAX_NAME:
        made = f"{made[:_MAX_NAME]}-{blake2b(text.encode(), digest_size=8).hexdigest()}"
    return made

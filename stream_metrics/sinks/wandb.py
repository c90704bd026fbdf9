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
from stream_metrics.sinks.wandb_runs import JoinedRun, OwnRun

_PROJECT: Final = "stream-metrics"
_MODES: Final = ("online", "offline")
_OLDEST: Final = (0, 31)
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
    "use_dot_wandb": False,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_graphql_retry_max": 1,
    "x_graphql_timeout_seconds": 10.0,
    "x_save_requirements": False,
    "x_transaction_log_flush_interval": 0.1,
}
"""A sink's runs are numbers alone: no system metrics, no code, nothing that it prints. The consumer tries on where W&B
is away, and hears of a stop, so the library needn't for long."""


class WandbSink(Sink):
    """Logs rows through W&B's library.

    Args:
        project: The project; None for `WANDB_PROJECT`, or `stream-metrics`.
        entity: The user or team it belongs to; None for W&B's own setting.
        mode: online or offline; None for `WANDB_MODE`, or online.
        directory: Where offline runs are kept; None for `WANDB_DIR`, or the current one.
        join: RUN=ID where the results of a run go to the W&B run that its trainer writes to.
    """

    def __init__(
        self,
        project: str | None = None,
        entity: str | None = None,
        mode: str | None = None,
        directory: str | None = None,
        join: str | None = None,
    ) -> None:
        self._project = project or os.environ.get("WANDB_PROJECT") or _PROJECT
        self._entity = entity
        self._mode = mode or os.environ.get("WANDB_MODE") or "online"
        self._directory = Path(directory or os.environ.get("WANDB_DIR") or ".")
        self._is_offline = self._mode == "offline"
        self._join_text = join
        self._joined: dict[str, str] = {}  # W&B's id by run
        self._wandb: Any = None
        self._record: Any = None
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._runs: dict[tuple[str, int, int], OwnRun] = {}  # those heard of last come last
        self._series: dict[tuple[str, str], _Series] = {}
        self._is_stale = False

    def setup(self) -> None:
        if self._mode not in _MODES:
            raise SinkRefusedError(f"the mode (--mode, WANDB_MODE) must be online or offline, not {self._mode!r}")
        if self._join_text is not None:
            run_id, sign, own_id = self._join_text.rpartition("=")
            if not sign or not run_id or not own_id or self._is_offline:
                raise SinkRefusedError(f"--join takes RUN=ID, and a W&B that is online, not {self._join_text!r}")
            self._joined = {run_id: own_id}
        os.environ.setdefault("WANDB_SILENT", "true")  # what it has to say is said in our lines
        self._wandb = library("wandb", "wandb")
        if tuple(map(int, re.findall(r"\d+", self._wandb.__version__)[:2])) < _OLDEST:
            needed = ".".join(map(str, _OLDEST))
            raise SinkRefusedError(f"W&B's library {self._wandb.__version__} is too old, {needed} is needed")
        self._record = library("wandb.proto.wandb_internal_pb2", "wandb").Record
        if self._is_offline:
            try:
                self._directory.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise SinkRefusedError(f"{str(self._directory)!r} can't be made: {error.strerror}") from None
            if not os.access(self._directory, os.W_OK | os.X_OK):  # the library would write elsewhere
                raise SinkRefusedError(f"{str(self._directory)!r} can't be written to")
            return
        if self._scratch is None:
            self._scratch = tempfile.TemporaryDirectory(prefix="stream-metrics-wandb-")
        with self._asking():
            self._wandb.setup(settings=self._settings())
            if not self._wandb.login(prompt=False, verify=True):
                raise _refused("there is none")

    def begin(self) -> None:
        self._is_stale = True

    def recall(self, delivery: Delivery) -> None:
        self._is_point(delivery, None)

    def write(self, batch: Sequence[Delivery]) -> None:
        if self._is_stale and self._runs:  # a run goes on where it thinks that W&B is, over what others put there
            self._abandon()
        self._is_stale = False
        for delivery in batch:
            run = self._run(delivery)
            with self._asking():
                is_point = self._is_point(delivery, run)
                if not run.has(_name(delivery.result.scope), delivery.offset):
                    self._log(run, delivery, is_point=is_point)

    def flush(self) -> None:
        for key in [key for key, run in self._runs.items() if run.has_unsure]:
            self._settle(key)

    def close(self) -> None:
        if self._wandb is not None:
            self._abandon()
        if self._scratch is not None:
            self._scratch.cleanup()
            self._scratch = None

    def forsake(self) -> None:
        if self._scratch is not None:
            shutil.rmtree(self._scratch.name, ignore_errors=True)

    def _is_point(self, delivery: Delivery, run: OwnRun | None) -> bool:
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

    def _log(self, run: OwnRun, delivery: Delivery, *, is_point: bool) -> None:
        result = delivery.result
        prefix = f"{result.scope}/"
        numbers = {_name(name.removeprefix(prefix)): number for name, number in result.metrics.items()}
        run.log(_name(result.scope), numbers, result.step, delivery.offset, is_point=is_point)

    def _run(self, delivery: Delivery) -> OwnRun:
        run_id, attempt = delivery.result.run_id, delivery.result.attempt
        key = (run_id, 0 if run_id in self._joined else attempt, delivery.partition)
        if key in self._runs:
            self._runs[key] = self._runs.pop(key)
            return self._runs[key]
        while len(self._runs) >= _MAX_OPEN_RUNS:
            oldest = next(iter(self._runs))
            if self._runs[oldest].has_unsure:
                self._settle(oldest)
            with self._asking():
                self._finish(self._runs.pop(oldest))
        run = self._runs[key] = self._open(key)
        return run

    def _open(self, key: tuple[str, int, int]) -> OwnRun:
        with self._asking():
            return self._join(key[0]) if key[0] in self._joined else self._open_own(*key)

    def _open_own(self, run_id: str, attempt: int, partition: int) -> OwnRun:
        """Begins a run, or goes on with it where W&B knows it."""
        own_id = blake2b(json.dumps([run_id, attempt, partition]).encode(), digest_size=16).hexdigest()
        values: dict[str, Any] = {}
        next_row = 0
        if self._is_offline:
            for path in sorted(self._directory.glob(f"wandb/offline-run-*/run-{own_id}.wandb")):
                for row in RunFile(path, self._record).rows():
                    next_row = max(next_row, row.step + 1)
                    values |= row.values
        tool = self._init(
            own_id,
            name=run_id[:_MAX_TEXT] + (f" attempt {attempt}" if attempt else ""),
            group=run_id[:_MAX_TEXT],
            job_type="stream_metrics",
            config={"run_id": run_id, "attempt": attempt, "partition": partition},
            allow_val_change=True,
            resume="allow",
            settings=self._settings(mode=self._mode),
        )
        if not self._is_offline:
            next_row = int(tool.starting_step)
            values = dict(tool.summary)
        return OwnRun(tool, next_row, values, RunFile(Path(tool.settings.sync_file), self._record))

    def _join(self, run_id: str) -> OwnRun:
        settings = self._settings(mode="shared", x_primary=False, x_label="stream_metrics", x_update_finish_state=False)
        tool = self._init(self._joined[run_id], settings=settings)
        return JoinedRun(tool, self._wandb.Api().run(f"{tool.entity}/{tool.project}/{tool.id}").history)

    def _init(self, own_id: str, **how: Any) -> Any:
        folder = self._directory if self._scratch is None else self._scratch.name
        return self._wandb.init(
            project=self._project, entity=self._entity, id=own_id, dir=str(folder), reinit="create_new", **how
        )

    def _settings(self, **more: Any) -> Any:
        # Those that begin with x_ may go with any version.
        known = self._wandb.Settings.model_fields
        own = {name: value for name, value in _SETTINGS.items() if name in known}
        return self._wandb.Settings(**own, **more)

    def _settle(self, key: tuple[str, int, int]) -> None:
        """W&B has all rows of a run."""
        run = self._runs[key]
        if self._is_offline:
            self._await_file(run)
            return
        with self._asking():
            self._finish(run)
            del self._runs[key]
            again = self._runs[key] = self._open(key)
            is_short = again.lacks_rows_of(run)
        if is_short:
            self._abandon()
            raise SinkOutageError(f"W&B didn't take what was logged to run {key[0]!r}")

    def _await_file(self, run: OwnRun) -> None:
        until = time.monotonic() + _FILE_SECONDS
        run.look_into_file()
        while run.has_unsure:
            if time.monotonic() >= until:
                self._abandon()
                raise SinkOutageError("what was logged doesn't come to W&B's file: is the disk full?")
            time.sleep(_LOOK_SECONDS)
            run.look_into_file()

    def _finish(self, run: OwnRun) -> None:
        run.finish()
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
        except (SinkRefusedError, SinkOutageError):
            raise
        except Exception as error:
            text = str(error).strip() or type(error).__name__
            self._abandon()
            if _KEY.search(text) and not self._is_offline:
                raise _refused(text) from None
            raise SinkOutageError(f"W&B: {text}") from None


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

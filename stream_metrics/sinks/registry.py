"""Every sink by name, with its flags: the one table that the command line, the help and the docs' test read."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from stream_metrics.sinks.base import Sink


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """A flag of one sink; the sink's class takes its value under the flag's name.

    Attributes:
        name: Without dashes, words joined by underscores.
        help: What it says.
        default: What holds where it isn't given; its type is the flag's.
        metavar: What stands for the value in the help.
        is_needed: Whether it must be given.
    """

    name: str
    help: str
    default: str | int | None = None
    metavar: str = "NAME"
    is_needed: bool = False


@dataclass(frozen=True, slots=True)
class Kind:
    """A sink: where its class is, what it does, and its flags."""

    module: str
    class_name: str
    summary: str
    flags: tuple[Flag, ...] = ()


SINKS: Final[Mapping[str, Kind]] = {
    "stdout": Kind("stdout", "StdoutSink", "one result a line on standard output"),
    "jsonl": Kind(
        "jsonl",
        "JsonlSink",
        "one result a line at the end of a file",
        (Flag(name="path", metavar="FILE", help="the file; made where it's missing", is_needed=True),),
    ),
    "prometheus": Kind(
        "prometheus",
        "PrometheusSink",
        "the latest step of each run as gauges over HTTP",
        (
            Flag(name="host", metavar="ADDRESS", default="127.0.0.1", help="address to listen on"),
            Flag(name="port", metavar="PORT", default=8081, help="port of /metrics; 0 lets the system choose"),
            Flag(name="max_series", metavar="N", default=200, help="runs and scopes shown, those heard of last"),
        ),
    ),
    "tensorboard": Kind(
        "tensorboard",
        "TensorboardSink",
        "event files for TensorBoard",
        (Flag(name="directory", metavar="DIR", help="log directory; made where it's missing", is_needed=True),),
    ),
    "mlflow": Kind(
        "mlflow",
        "MlflowSink",
        "metrics of an MLflow experiment",
        (
            Flag(name="experiment", default="stream-metrics", help="the experiment; made where it's missing"),
            Flag(
                name="tracking_uri",
                metavar="URI",
                help="server or database, such as sqlite:///mlflow.db (default: MLFLOW_TRACKING_URI, or MLflow's own)",
            ),
        ),
    ),
    "wandb": Kind(
        "wandb",
        "WandbSink",
        "rows of W&B runs",
        (
            Flag(name="project", help="the project (default: WANDB_PROJECT, or stream-metrics)"),
            Flag(name="entity", help="the user or team it belongs to (default: W&B's own setting)"),
            Flag(name="mode", metavar="MODE", help="online or offline (default: WANDB_MODE, or online)"),
            Flag(name="directory", metavar="DIR", help="where offline runs are kept (default: WANDB_DIR, or here)"),
            Flag(
                name="join", metavar="RUN=ID", help="log run RUN to W&B's run ID, which its trainer has in shared mode"
            ),
        ),
    ),
}


def open_sink(name: str, options: Mapping[str, Any]) -> Sink:
    """Returns a sink, not set up yet.

    Args:
        name: Its name in the table.
        options: Values of its flags; those left out have their defaults.
    """
    kind = SINKS[name]
    module = importlib.import_module(f"stream_metrics.sinks.{kind.module}")
    values = {flag.name: flag.default for flag in kind.flags} | dict(options)
    sink: Sink = getattr(module, kind.class_name)(**values)
    return sink

"""Every sink keeps the one contract, by what a reader of the tool sees.

The tests of W&B, TensorBoard and MLflow use the real libraries and are skipped where those aren't installed: they are
no part of the extra `test`. W&B comes twice: offline, by its files, and online, to a server that answers as its does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from stream_metrics.events import LogPlace, StepMetrics, encode
from stream_metrics.sinks import wandb
from stream_metrics.sinks.base import Delivery, Sink
from stream_metrics.sinks.mlflow import _name
from stream_metrics.sinks.registry import SINKS, open_sink
from support.mlflow_store import new_store
from support.results import step_metrics
from support.wandb_server import KEY, StoredRun, WandbServer, offline_runs, running_server

ONLINE = "wandb online"

Curves = dict[tuple[str, str], list[tuple[int, float]]]
"""By run and scope, the points of `episode_raw_reward` as the tool's reader shows them, by step."""

LIBRARIES = {"tensorboard": "tensorboard", "mlflow": "mlflow", "wandb": "wandb", ONLINE: "wandb"}


def result(step: int, reward: float, *, run_id: str = "run", scope: str = "rollout", **fields: Any) -> StepMetrics:
    made: dict[str, Any] = {
        "opened_unix_ms": 1_700_000_000_000 + step,
        "closed_unix_ms": 1_700_000_001_000 + step,
        "log": LogPlace(topic="samples", partition=0, first_offset=10 * step, close_offset=10 * step + 9),
        "metrics": {
            f"{scope}/num_training_samples": 9,
            f"{scope}/episode_raw_reward": reward,
            f"{scope}/step": step,
        },
    }
    return step_metrics(step, run_id=run_id, scope=scope, **(made | fields))


def corrected(step: int, reward: float, late_samples: int = 1, **fields: Any) -> StepMetrics:
    return result(step, reward, correction=True, late_samples=late_samples, **fields)


def deliveries(*results: StepMetrics, first_offset: int = 0) -> list[Delivery]:
    return [
        Delivery(one, encode(one), 0, first_offset + place, 1_700_000_100_000 + first_offset + place)
        for place, one in enumerate(results)
    ]


@dataclass
class Tool:
    """One tool, through as many lives of its sink as the test wants."""

    name: str
    folder: Path
    capture: pytest.CaptureFixture[bytes]
    sink: Sink | None = None
    shows_all_steps: bool = True
    printed: bytes = b""
    options: dict[str, Any] = field(default_factory=dict)

    def start(self, *recalled: Delivery) -> Sink:
        """A new life; `recalled` is what the consumer knows to be taken."""
        if self.sink is not None:
            self.sink.close()
        self.sink = open_sink(self.sink_name, self.options)
        self.sink.setup()
        for delivery in recalled:
            self.sink.recall(delivery)
        return self.sink

    @property
    def sink_name(self) -> str:
        return self.name.partition(" ")[0]

    def give(self, batch: list[Delivery]) -> None:
        assert self.sink is not None
        self.sink.write(batch)
        self.sink.flush()

    def curves(self) -> Curves:
        raise NotImplementedError

    def close(self) -> None:
        if self.sink is not None:
            self.sink.close()
            self.sink = None


def last_lines(text: bytes) -> Curves:
    newest: dict[tuple[str, str, int], float] = {}
    for line in text.splitlines():
        one = msgspec.json.decode(line, type=StepMetrics)
        newest[one.run_id, one.scope, one.step] = float(one.metrics[f"{one.scope}/episode_raw_reward"])
    curves: Curves = {}
    for (run_id, scope, step), reward in sorted(newest.items()):
        curves.setdefault((run_id, scope), []).append((step, reward))
    return curves


class StdoutTool(Tool):
    def curves(self) -> Curves:
        self.printed += self.capture.readouterr().out
        return last_lines(self.printed)


class JsonlTool(Tool):
    def curves(self) -> Curves:
        text = Path(self.options["path"]).read_bytes()
        lines = text.splitlines()
        assert len(lines) == len(set(lines)), "a line came twice"
        return last_lines(text)


class PrometheusTool(Tool):
    def curves(self) -> Curves:
        import urllib.request

        with urllib.request.urlopen(f"http://127.0.0.1:{self.sink.port}/metrics", timeout=10) as answer:  # type: ignore[union-attr]
            text = answer.read().decode()
        numbers: dict[tuple[str, str], dict[str, float]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = sample.labels
                if family.name == "stream_metrics_result":
                    series = numbers.setdefault((labels["run_id"], labels["scope"]), {})
                    assert labels["metric"] not in series
                    series[labels["metric"]] = sample.value
        return {key: [(int(found["step"]), found["episode_raw_reward"])] for key, found in numbers.items()}


class TensorboardTool(Tool):
    def curves(self) -> Curves:
        """What TensorBoard's own reader keeps of the event files, of each folder that has some."""
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        curves: Curves = {}
        for folder in sorted({path.parent for path in Path(self.options["directory"]).rglob("*tfevents*")}):
            reader = EventAccumulator(str(folder), size_guidance={"scalars": 0})
            reader.Reload()
            run, scope = folder.relative_to(self.options["directory"]).parts
            (tag,) = (tag for tag in reader.Tags()["scalars"] if tag.endswith("/episode_raw_reward"))
            name = tag.removesuffix("/episode_raw_reward")
            if "~" not in scope:
                assert unquote(scope) == name
            run_id = next((long for long in (X, Z) if run.endswith(hashed(long))), unquote(run))
            curves[run_id, name] = [(event.step, round(event.value, 6)) for event in reader.Scalars(tag)]
        return curves


class MlflowTool(Tool):
    def curves(self) -> Curves:
        """What MLflow's client says of each run's metrics; a run of another attempt has its name."""
        from mlflow import MlflowClient

        client = MlflowClient(tracking_uri=self.options["tracking_uri"])
        experiment = client.get_experiment_by_name(self.options["experiment"])
        curves: Curves = {}
        for run in client.search_runs([experiment.experiment_id]):
            run_id = run.data.tags["stream_metrics.run_id"]
            run_id = run_id if run.data.tags["stream_metrics.attempt"] == "0" else run.info.run_name
            for name in run.data.metrics:
                for scope in SCOPES:
                    if name == _name("", f"{scope}/episode_raw_reward"):
                        points = client.get_metric_history(run.info.run_id, name)
                        assert (run_id, scope) not in curves
                        curves[run_id, scope] = sorted((point.step, point.value) for point in points)
        return curves


class WandbTool(Tool):
    def curves(self) -> Curves:
        """What the rows of each run say, whose order W&B keeps; a run of another attempt has its name."""
        curves: Curves = {}
        for run in self.runs():
            places = [row["_step"] for row in run.rows]
            assert places == sorted(set(places)), "a row came twice, or went back"
            for row in run.rows:
                for scope in SCOPES:
                    key = f"{wandb._name(scope)}/episode_raw_reward"
                    if key in row:
                        step = row[f"{wandb._name(scope)}/step"]
                        curves.setdefault((run.shown_name, scope), []).append((step, row[key]))
        return {key: sorted(points) for key, points in curves.items()}

    def runs(self) -> Iterable[StoredRun]:
        return offline_runs(self.folder).values()


@dataclass
class WandbOnlineTool(WandbTool):
    server: WandbServer | None = None

    def runs(self) -> Iterable[StoredRun]:
        assert self.server is not None
        return self.server.runs.values()


SCOPES = ("rollout", "eval/aime24", ".", "ü %s <b>", "x", "y" * 300)
X, Z = "x" * 512, "x" * 511 + "z"


def hashed(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def make_tool(name: str, folder: Path, capture: pytest.CaptureFixture[bytes]) -> Tool:
    if name in LIBRARIES:
        pytest.importorskip(LIBRARIES[name], reason=f"the sink {name}'s library isn't installed")
    if name == "stdout":
        return StdoutTool(name, folder, capture)
    if name == "jsonl":
        return JsonlTool(name, folder, capture, options={"path": str(folder / "results.jsonl")})
    if name == "prometheus":
        return PrometheusTool(name, folder, capture, shows_all_steps=False, options={"port": 0})
    if name == "tensorboard":
        return TensorboardTool(name, folder, capture, options={"directory": str(folder / "logs")})
    if name == "wandb":
        options = {"mode": "offline", "directory": str(folder)}
        return WandbTool(name, folder, capture, options=options)
    if name == ONLINE:
        return WandbOnlineTool(name, folder, capture, options={"mode": "online"})
    if name == "mlflow":
        return MlflowTool(name, folder, capture, options={"experiment": "e", "tracking_uri": new_store(folder)})
    raise AssertionError(f"no tests for the sink {name}")


# What a library warns of in itself is its own.
_LENIENT = pytest.mark.filterwarnings("ignore")


@pytest.fixture(params=[pytest.param(name, marks=[_LENIENT] if name in LIBRARIES else []) for name in (*SINKS, ONLINE)])
def tool(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    capfdbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Tool]:
    made = make_tool(request.param, tmp_path, capfdbinary)
    with ExitStack() as stack:
        if isinstance(made, WandbOnlineTool):
            made.server = stack.enter_context(running_server())
            monkeypatch.setenv("WANDB_BASE_URL", made.server.url)
            monkeypatch.setenv("WANDB_API_KEY", KEY)
        stack.callback(made.close)
        yield made


def assert_curves(tool: Tool, want: Curves) -> None:
    if not tool.shows_all_steps:
        want = {key: points[-1:] for key, points in want.items()}
    assert tool.curves() == want


def test_each_result_is_one_point(tool: Tool) -> None:
    tool.start()
    tool.give(deliveries(result(1, 0.1), result(2, 0.2)))
    tool.give(deliveries(result(3, 0.3), first_offset=2))
    assert_curves(tool, {("run", "rollout"): [(1, 0.1), (2, 0.2), (3, 0.3)]})


def test_what_was_flushed_is_seen_while_the_sink_goes_on(tool: Tool) -> None:
    tool.start()
    tool.give(deliveries(result(1, 0.1)))
    assert_curves(tool, {("run", "rollout"): [(1, 0.1)]})
    tool.give(deliveries(result(2, 0.2), first_offset=1))
    assert_curves(tool, {("run", "rollout"): [(1, 0.1), (2, 0.2)]})


def test_a_batch_given_again_after_a_failed_flush_doubles_nothing(tool: Tool) -> None:
    sink = tool.start()
    batch = deliveries(result(1, 0.1), corrected(1, 0.2), result(2, 0.3))
    sink.write(batch)
    tool.give(batch)
    tool.give(deliveries(result(3, 0.4), first_offset=3))
    assert_curves(tool, {("run", "rollout"): [(1, tool_reward(tool, 0.1, 0.2)), (2, 0.3), (3, 0.4)]})


def test_a_batch_that_comes_again_after_a_crash_doubles_nothing(tool: Tool) -> None:
    first, second = deliveries(result(1, 0.1)), deliveries(result(2, 0.2), result(3, 0.3), first_offset=1)
    tool.start()
    tool.give(first)
    tool.give(second)
    if type(tool.sink).is_lasting:
        tool.start(*first)  # the offset of the second batch wasn't committed
    else:
        tool.start()
        tool.give(first)
    tool.give(second)
    tool.give(deliveries(result(4, 0.4), first_offset=3))
    assert_curves(tool, {("run", "rollout"): [(1, 0.1), (2, 0.2), (3, 0.3), (4, 0.4)]})


def test_a_correction_never_doubles_a_point_nor_hides_the_steps_after_it(tool: Tool) -> None:
    tool.start()
    tool.give(deliveries(result(1, 0.1), result(2, 0.2), result(3, 0.3)))
    tool.give(deliveries(corrected(2, 0.5), result(4, 0.4), first_offset=3))
    assert_curves(tool, {("run", "rollout"): [(1, 0.1), (2, tool_reward(tool, 0.2, 0.5)), (3, 0.3), (4, 0.4)]})


def test_a_correction_after_a_restart_never_doubles_a_point(tool: Tool) -> None:
    first = deliveries(result(1, 0.1), result(2, 0.2), result(3, 0.3))
    tool.start()
    tool.give(first)
    tool.start(*first)
    if not type(tool.sink).is_lasting:
        tool.give(first)
    tool.give(deliveries(corrected(2, 0.5), first_offset=3))
    tool.give(deliveries(corrected(2, 0.6, 2), result(4, 0.4), first_offset=4))
    assert_curves(tool, {("run", "rollout"): [(1, 0.1), (2, tool_reward(tool, 0.2, 0.6)), (3, 0.3), (4, 0.4)]})


def test_steps_may_come_out_of_order(tool: Tool) -> None:
    tool.start()
    tool.give(deliveries(result(2, 0.2), result(5, 0.5), result(3, 0.3)))
    tool.give(deliveries(result(1, 0.1), result(6, 0.6), first_offset=3))
    assert_curves(tool, {("run", "rollout"): [(1, 0.1), (2, 0.2), (3, 0.3), (5, 0.5), (6, 0.6)]})


def test_runs_and_scopes_stay_apart_whatever_their_names(tool: Tool) -> None:
    names = [
        ("run", "rollout"),
        ("run", "eval/aime24"),
        ("run/..", "rollout"),
        ("..", "."),
        ('a"b\\c\n', "ü %s <b>"),
        ("a+b", "x"),
        ("a=b", "x"),
        (X, "y" * 300),
        (Z, "y" * 300),
    ]
    tool.start()
    tool.give(deliveries(*(result(1, place / 8, run_id=run, scope=scope) for place, (run, scope) in enumerate(names))))
    assert_curves(tool, {(run, scope): [(1, place / 8)] for place, (run, scope) in enumerate(names)})


def test_what_a_newer_attempt_does_again_is_one_point_a_step(tool: Tool) -> None:
    tool.start()
    tool.give(deliveries(result(1, 0.1), result(2, 0.2), result(3, 0.3)))
    tool.give(deliveries(result(2, 0.7, attempt=1), result(3, 0.8, attempt=1), first_offset=3))
    assert_newer_attempt(tool)


def test_a_newer_attempt_survives_a_restart(tool: Tool) -> None:
    old, new = (
        deliveries(result(1, 0.1), result(2, 0.2), result(3, 0.3)),
        deliveries(result(2, 0.7, attempt=1), result(3, 0.8, attempt=1), first_offset=3),
    )
    tool.start()
    tool.give(old)
    tool.give(new[:1])
    tool.start(*old)
    if not type(tool.sink).is_lasting:
        tool.give(old)
    tool.give(new)
    assert_newer_attempt(tool)


def test_an_incomplete_result_of_an_overtaken_attempt_is_a_point_like_any_other(tool: Tool) -> None:
    tool.start()
    tool.give(deliveries(result(1, 0.1), result(2, 0.2, complete=False, reason="superseded")))
    assert_curves(tool, {("run", "rollout"): [(1, 0.1), (2, 0.2)]})


def test_an_empty_batch_is_nothing(tool: Tool) -> None:
    tool.start()
    tool.give([])
    tool.give(deliveries(result(1, 0.1)))
    assert_curves(tool, {("run", "rollout"): [(1, 0.1)]})


def test_closing_twice_or_before_anything_was_set_up_is_nothing(tool: Tool) -> None:
    open_sink(tool.sink_name, tool.options).close()


def tool_reward(tool: Tool, first: float, last: float) -> float:
    """Which of a step's results is on its curve: tools that can't change a point show the corrections beside it."""
    return first if tool.sink_name in ("wandb", "mlflow") else last


def assert_newer_attempt(tool: Tool) -> None:
    if tool.sink_name in ("wandb", "mlflow"):  # a tool's run of its own for each attempt
        want = {
            ("run", "rollout"): [(1, 0.1), (2, 0.2), (3, 0.3)],
            ("run attempt 1", "rollout"): [(2, 0.7), (3, 0.8)],
        }
        assert tool.curves() == want
    else:
        assert_curves(tool, {("run", "rollout"): [(1, 0.1), (2, 0.7), (3, 0.8)]})

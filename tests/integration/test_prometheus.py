"""A real Prometheus with the repository's own files asks a real sidecar and a real sink, and finds all it asks for."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from stream_metrics.testing import close, sample
from support.brokers import Broker
from support.operations import Operated, operated
from support.programs import program
from support.topics import unique_name
from support.waiting import wait_until

DEPLOY = Path(__file__).parents[2] / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana" / "dashboards" / "stream-metrics.json").read_text())
QUERIES = [(panel["title"], one["expr"]) for panel in DASHBOARD["panels"] for one in panel.get("targets", ())]
ALERTS = re.findall(r"- alert: (\w+)", (DEPLOY / "prometheus" / "alerts.yml").read_text())

SETTINGS = {"close_grace": 1, "commit_interval": 0.5, "dead_letter_limit": 1}
_METRIC = re.compile(r"\b(?:stream_metrics|process)_\w+|\bup\b")


class Prometheus:
    """A server that runs, and what it says when asked."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._address = wait_until(self._listens_on, "Prometheus listens", 60)
        wait_until(self._is_ready, "Prometheus is ready", 60)

    def _listens_on(self) -> str | None:
        found = re.search(r"address=(127\.0\.0\.1:[1-9]\d*)", self._log.read_text())
        return found and found[1]

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self._address}/-/ready", timeout=10):
                return True
        except OSError:
            return False

    def get(self, path: str, **parameters: str) -> Any:
        url = f"http://{self._address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]

    def query(self, expression: str) -> dict[tuple[tuple[str, str], ...], float]:
        """Returns each series' labels, those of the target left out, with its value now."""
        values = {}
        for one in self.get("query", query=expression)["result"]:
            labels = {name: value for name, value in one["metric"].items() if name not in ("job", "instance")}
            values[tuple(sorted(labels.items()))] = float(one["value"][1])
        return values

    def value(self, expression: str) -> float | None:
        """Returns the value of the only series; None where there is none."""
        values = list(self.query(expression).values())
        assert len(values) < 2, values
        return values[0] if values else None

    def wait_for(self, expected: dict[str, float]) -> None:
        """Each expression has its value."""

        def found() -> dict[str, float | None]:
            return {expression: self.value(expression) for expression in expected}

        try:
            wait_until(lambda: found() == expected, "the values", 60)
        except AssertionError:
            assert found() == expected
            raise

    def firing(self) -> set[str]:
        return {dict(labels)["alertname"] for labels in self.query('ALERTS{alertstate="firing"}')}


def _configured(folder: Path, sidecar: int, results: int) -> Path:
    """Returns the configuration of the repository, faster and with these ports."""
    text = (DEPLOY / "prometheus" / "prometheus.yml").read_text()
    for old, new in (
        ("sidecar:8080", f"127.0.0.1:{sidecar}"),
        ("results:8081", f"127.0.0.1:{results}"),
        ("scrape_interval: 5s", "scrape_interval: 1s"),
        ("evaluation_interval: 15s", "evaluation_interval: 1s"),
    ):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    path = folder / "prometheus.yml"
    path.write_text(text)
    (folder / "alerts.yml").write_text((DEPLOY / "prometheus" / "alerts.yml").read_text())
    return path


def _started(stack: ExitStack, arguments: list[str], log: Path) -> None:
    with log.open("wb") as out:
        process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    stack.callback(process.wait, 30)
    stack.callback(process.kill)


def _sink(stack: ExitStack, sidecar: Operated, folder: Path) -> int:
    """Starts the sink and returns its port."""
    log = folder / "sink.log"
    flags = ["--port", "0", "--group", unique_name("sink"), "--log-format", "json"]
    topic = ["--bootstrap-servers", sidecar.bootstrap, "--output-topic", sidecar.deployment.output_topic]
    _started(stack, [sys.executable, "-m", "stream_metrics", "sink", "prometheus", *flags, *topic], log)

    def port() -> int:
        lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
        return next((int(line["port"]) for line in lines if "port" in line), 0)

    return wait_until(port, "the sink listens", 60)


@pytest.fixture(scope="module")
def prometheus(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    server = program("prometheus", package="prometheus")
    folder = tmp_path_factory.mktemp("prometheus")
    with ExitStack() as stack:
        sidecar = stack.enter_context(operated(broker.bootstrap, folder, **SETTINGS))
        sidecar.start_ready()
        config = _configured(folder, sidecar.process.settings["http-port"], _sink(stack, sidecar, folder))
        storage = ["--storage.tsdb.path", str(folder / "data")]
        log = folder / "prometheus.log"
        _started(stack, [server, "--config.file", str(config), *storage, "--web.listen-address", "127.0.0.1:0"], log)
        made = Prometheus(log)
        # A rise from 0 is one only where the 0 was seen.
        made.wait_for({"stream_metrics_results_total": 0, 'up{job="stream-metrics-results"}': 1})
        sidecar.send(*_events(), run_id="run-a")
        sidecar.wait_for_results(4, deadline_seconds=60)
        yield made


def _events() -> list[Any]:
    """Step 1 whole, step 2 corrected, step 3 with a sample too few; a resent sample, a batch, and something else."""
    return [
        *[sample(1, 1.0, group_index=0, rollout_id=0)] * 3,
        sample(1, 0.0, group_index=0, rollout_id=1),
        close(1),
        {"type": "samples", "step": 2, "samples": [{"reward": 1.0, "sample_id": 1}, {"reward": 0.0, "sample_id": 1}]},
        close(2),
        b"something else",
        sample(3, 1.0, group_index=0, rollout_id=0),
        sample(3, 1.0, group_index=0, rollout_id=0),
        sample(3, 0.0, group_index=0, rollout_id=1),
        {**close(3), "expected_samples": 4},
        {"type": "sample", "step": 2, "reward": 0.0, "sample_id": 2},
    ]


def test_the_results_are_there_as_gauges_of_the_latest_step(prometheus: Prometheus) -> None:
    of_run = 'run_id="run-a",scope="rollout"'
    prometheus.wait_for(
        {
            f"stream_metrics_result_step{{{of_run}}}": 3,
            f"stream_metrics_result_complete{{{of_run}}}": 0,
            f'stream_metrics_result{{{of_run},metric="num_training_samples"}}': 3,
            f'stream_metrics_result{{{of_run},metric="episode_raw_reward"}}': 0.5,
            f'stream_metrics_result{{{of_run},metric="raw_reward"}}': 2 / 3,
        }
    )


def test_the_sidecar_has_counted_what_it_did(prometheus: Prometheus) -> None:
    prometheus.wait_for(
        {
            'up{job="stream-metrics"}': 1,
            "stream_metrics_is_ready": 1,
            'stream_metrics_events_total{type="sample"}': 8,
            'stream_metrics_events_total{type="samples"}': 1,
            'stream_metrics_events_total{type="close"}': 4,  # one of them its own
            "stream_metrics_samples_total": 9,
            "stream_metrics_duplicate_samples_total": 1,
            "stream_metrics_late_samples_total": 1,
            'stream_metrics_dead_letters_total{reason="undecodable"}': 1,
            "stream_metrics_results_total": 3,
            "stream_metrics_incomplete_results_total": 1,
            "stream_metrics_corrections_total": 1,
            "stream_metrics_timeout_markers_total": 1,
            "stream_metrics_close_to_publish_seconds_count": 3,
            "stream_metrics_open_windows": 0,
            "stream_metrics_consumer_lag": 0,
        }
    )


@pytest.mark.parametrize(("title", "expression"), QUERIES, ids=[f"{title}-{n}" for n, (title, _) in enumerate(QUERIES)])
def test_every_query_of_the_dashboard_finds_something(prometheus: Prometheus, title: str, expression: str) -> None:
    for name, value in (("$run", ".*"), ("$scope", ".*"), ("$__rate_interval", "1m")):
        expression = expression.replace(name, value)
    assert "$" not in expression
    wait_until(lambda: prometheus.query(expression), f"{title}: {expression}", 60)


def test_the_dashboard_offers_the_runs_and_scopes_that_there_are(prometheus: Prometheus) -> None:
    offered = {}
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            series, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"]).groups()  # type: ignore[union-attr]
            parameters = {"match[]": series.replace("$run", ".*")}
            offered[variable["name"]] = prometheus.get(f"label/{label}/values", **parameters)
    assert offered == {"run": ["run-a"], "scope": ["rollout"]}


def test_every_alert_names_metrics_that_there_are_and_is_evaluated(prometheus: Prometheus) -> None:
    def rules() -> list[dict[str, Any]]:
        return [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]

    wait_until(lambda: all(rule["health"] == "ok" for rule in rules()), "the rules are evaluated", 60)
    there = set(prometheus.get("label/__name__/values"))
    assert sorted(rule["name"] for rule in rules()) == sorted(ALERTS)
    for rule in rules():
        named = set(_METRIC.findall(rule["query"]))
        assert named and named <= there, (rule["name"], named - there)


def test_what_is_wrong_sets_off_its_alert_and_no_other(prometheus: Prometheus) -> None:
    expected = {"StreamMetricsDeadLetters", "StreamMetricsIncompleteSteps"}
    wait_until(lambda: prometheus.firing() >= expected, f"{expected} fire", 60)
    assert prometheus.firing() == expected

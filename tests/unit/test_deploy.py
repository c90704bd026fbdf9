"""The files for Prometheus and Grafana hold together, by Prometheus' own checker where it is there."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.programs import program

DEPLOY = Path(__file__).parents[2] / "deploy"
ALERTS = DEPLOY / "prometheus" / "alerts.yml"


@pytest.mark.parametrize(
    "arguments",
    [("check", "config", "prometheus.yml"), ("check", "rules", "alerts.yml"), ("test", "rules", "alerts_test.yml")],
)
def test_prometheus_takes_the_files_and_each_alert_fires_when_it_should(arguments: tuple[str, ...]) -> None:
    promtool = program("promtool", package="prometheus")
    done = subprocess.run(
        [promtool, *arguments], cwd=DEPLOY / "prometheus", capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_a_test_and_says_how_bad_it_is_and_what_to_do() -> None:
    alerts = ALERTS.read_text().split("- alert: ")[1:]
    names = [alert.split("\n")[0] for alert in alerts]
    tested = set(re.findall(r'alertname="(\w+)"', (DEPLOY / "prometheus" / "alerts_test.yml").read_text()))
    assert tested == set(names) and len(names) == len(set(names))
    for alert in alerts:
        assert all(part in alert for part in ("labels: {severity: ", "summary: ", "description: ")), alert


def _sources(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for name, one in value.items():
            if name == "datasource":
                yield one
            else:
                yield from _sources(one)
    elif isinstance(value, list):
        for one in value:
            yield from _sources(one)


def test_the_dashboard_asks_the_source_that_is_chosen_and_each_panel_has_its_place() -> None:
    dashboard = json.loads((DEPLOY / "grafana" / "dashboards" / "stream-metrics.json").read_text())
    assert all(source == {"type": "prometheus", "uid": "${datasource}"} for source in _sources(dashboard))
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells)) and max(x for x, _ in cells) < 24

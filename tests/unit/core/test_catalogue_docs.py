from __future__ import annotations

from pathlib import Path

from stream_metrics.core.catalogue import METRICS, OUTCOMES
from stream_metrics.core.catalogue_docs import render

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), "run python docs/generate.py"


def test_the_page_has_each_metric_once() -> None:
    rows = [line.split("`")[1] for line in render().splitlines() if line.startswith("| `")]
    assert sorted(rows) == sorted([metric.key for metric in METRICS] + list(OUTCOMES))

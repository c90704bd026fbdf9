"""The cases of `tests/cases`: small inputs with the results they must give."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from stream_metrics.core.settings import FoldSettings
from stream_metrics.testing import MemoryLog

CASES = Path(__file__).parent.parent / "cases"
NAMES = sorted(path.stem for path in CASES.glob("*.json"))


def load(name: str) -> dict[str, Any]:
    return json.loads((CASES / f"{name}.json").read_text())


def settings_of(case: dict[str, Any]) -> FoldSettings:
    return FoldSettings(**case.get("config", {}))


def values_of(case: dict[str, Any]) -> list[tuple[bytes | None, list[tuple[str, bytes | None]] | None, int | None]]:
    """Returns (value, headers, timestamp) of each record."""
    made = []
    for record in case["records"]:
        if record is None:
            made.append((None, None, None))
            continue
        value = record["text"].encode() if "text" in record else json.dumps(record["value"]).encode()
        headers = [(name, text.encode()) for name, text in (record.get("headers") or {}).items()] or None
        made.append((value, headers, record.get("timestamp")))
    return made


def log_of(case: dict[str, Any]) -> MemoryLog:
    log = MemoryLog()
    for value, headers, timestamp in values_of(case):
        log.append(value, headers=headers, unix_ms=timestamp)
    return log


def assert_results(results: list[dict[str, Any]], case: dict[str, Any]) -> None:
    """Compares results field by field on the fields that the case names."""
    expected = case["expect"].get("results", [])
    assert len(results) == len(expected), f"{len(results)} results, expected {len(expected)}: {results}"
    for got, want in zip(results, expected, strict=True):
        _assert_fields(got, want)


def _assert_fields(got: dict[str, Any], want: dict[str, Any]) -> None:
    for field, value in want.items():
        if isinstance(value, dict):
            _assert_fields(got[field], value)
        elif isinstance(value, float):
            assert math.isclose(got[field], value, rel_tol=0, abs_tol=1e-12), f"{field}: {got[field]}, expected {value}"
        else:
            assert got[field] == value, f"{field}: {got[field]!r}, expected {value!r}"

"""The fuzzer's inputs and checks, which need no fuzzer; what it finds becomes a test beside its subject."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from fuzz import fuzz
from fuzz.fuzz import check, pack, seeds, unpack


def test_what_the_fuzzer_starts_from_breaks_nothing() -> None:
    inputs = list(seeds())
    assert len(inputs) > 80
    for data in inputs:
        check(data)


def test_a_finding_is_tried_again_by_the_script_alone(tmp_path: Path) -> None:
    finding = tmp_path / "crash-1"
    finding.write_bytes(pack([(0, b'{"type":"close","step":1}')]))
    ran = subprocess.run([sys.executable, fuzz.__file__, finding], capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "close" in ran.stdout


def test_an_input_is_read_as_it_was_packed() -> None:
    records = [(0, b"{}"), (3, None), (9, b"\x00\xff"), (4, b"")]
    assert unpack(pack(records)) == records
    assert unpack(pack(records)[:-1]) == records[:-1]


def test_its_checks_see_a_fold_that_depends_on_how_records_come_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    from stream_metrics.core.fold import Fold

    feed = Fold.feed
    monkeypatch.setattr(Fold, "feed", lambda self, records: feed(self, records[:1]))
    with pytest.raises(AssertionError):
        check(pack([(0, b'{"type":"sample","step":1,"reward":1}'), (0, b'{"type":"close","step":1}')]))

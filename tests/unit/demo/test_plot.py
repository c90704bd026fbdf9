"""The plot: a file of the format that its name says, whatever the rows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("rich", reason="the extra `demo` isn't installed")
pytest.importorskip("matplotlib", reason="the extra `demo` isn't installed")

from stream_metrics.demo.plot import save_plot
from stream_metrics.demo.view import Row

ROWS = [
    Row(0, 4, 2, 0.75, 0.5, False, ""),
    Row(1, 3, 2, None, 0.0, False, ""),
    Row(0, 5, 2, 0.8, 0.5, True, "correction +1"),
]


def drawn(folder: Path, rows: list[Row]) -> list[str]:
    """Returns the shapes of a plot; the rest of the file has names made by chance."""
    path = folder / "plot.svg"
    save_plot(rows, path, "A run")
    return re.findall(r'\bd="([^"]*)"', path.read_text())


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_plot_is_saved(tmp_path: Path, number: int) -> None:
    path = tmp_path / "plot.png"
    save_plot(ROWS[:number], path, "A run")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_step_is_drawn_as_its_last_row_says(tmp_path: Path) -> None:
    assert drawn(tmp_path, ROWS) == drawn(tmp_path, [ROWS[1], ROWS[2]])
    assert drawn(tmp_path, ROWS) != drawn(tmp_path, ROWS[:2])


def test_a_folder_that_is_not_there_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        save_plot(ROWS, tmp_path / "none" / "plot.png", "A run")

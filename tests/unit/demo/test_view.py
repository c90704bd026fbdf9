"""The table: rows that say what the result says, bars to the right side, and no markup from outside."""

from __future__ import annotations

import io
import re

import pytest

pytest.importorskip("rich", reason="the extra `demo` isn't installed")

from stream_metrics.demo.view import BAR_GAP, BAR_WIDTH, Row, View, gap_bar, row_of
from stream_metrics.events import LogPlace, ResultReason, StepMetrics

HALF = BAR_WIDTH // 2


def result(
    *,
    step: int = 3,
    complete: bool = True,
    reason: ResultReason = "closed",
    correction: bool = False,
    late: int = 0,
    **metrics: float,
) -> StepMetrics:
    return StepMetrics(
        run_id="r",
        scope="rollout",
        step=step,
        attempt=0,
        complete=complete,
        reason=reason,
        correction=correction,
        late_samples=late,
        opened_unix_ms=None,
        closed_unix_ms=None,
        log=LogPlace(topic="t", partition=0, first_offset=0, close_offset=1),
        metrics={f"rollout/{name}": value for name, value in metrics.items()},
    )


def row(*, by_sample: float = 0.75, by_rollout: float = 0.5, is_correction: bool = False, note: str = "") -> Row:
    return Row(3, 4, 2, by_sample, by_rollout, is_correction, note)


class TextStream(io.StringIO):
    """A stream that a test may give an encoding and a terminal's nature."""

    def __init__(self, encoding: str = "utf-8", *, is_terminal: bool = False) -> None:
        super().__init__()
        self._encoding = encoding
        self._is_terminal = is_terminal

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding

    def isatty(self) -> bool:
        return self._is_terminal


def test_a_row_says_what_the_result_says() -> None:
    shown = row_of(result(num_training_samples=4, num_rollouts=2, raw_reward=0.75, episode_raw_reward=0.5))
    assert shown == row()
    assert shown.gap == 0.25


def test_a_correction_says_how_many_samples_were_late() -> None:
    shown = row_of(result(correction=True, late=3, num_training_samples=4, missing_rewards=1))
    assert (shown.is_correction, shown.note) == (True, "correction +3")


def test_an_incomplete_step_says_why() -> None:
    assert row_of(result(complete=False, reason="timeout", missing_rewards=2)).note == (
        "incomplete: timeout, 2 unrewarded"
    )


def test_a_step_without_rewards_has_no_gap() -> None:
    shown = row_of(result(num_training_samples=1, num_rollouts=1, episode_raw_reward=0.0))
    assert (shown.by_sample, shown.gap) == (None, 0.0)


@pytest.mark.parametrize(
    ("gap", "bar"),
    [
        (0.0, " " * BAR_WIDTH + "│" + " " * BAR_WIDTH),
        (-BAR_GAP / 2, " " * HALF + "█" * HALF + "│" + " " * BAR_WIDTH),
        (BAR_GAP / 2, " " * BAR_WIDTH + "│" + "█" * HALF + " " * HALF),
        (-1.0, "█" * BAR_WIDTH + "│" + " " * BAR_WIDTH),
        (1.0, " " * BAR_WIDTH + "│" + "█" * BAR_WIDTH),
    ],
)
def test_a_bar_goes_to_the_left_where_the_mean_over_samples_is_too_low(gap: float, bar: str) -> None:
    assert gap_bar(gap) == bar


def test_without_a_terminal_there_are_plain_lines() -> None:
    stream = TextStream()
    with View(stream) as view:
        view.say("A paragraph.")
        view.status("not said")
        view.add(row(note="a note"))
        view.add(row(by_sample=0.25))
    assert stream.getvalue().splitlines() == [
        "A paragraph.",
        "                      reward by reward by         by sample reads",
        "step samples rollouts    sample   rollout    gap  too low│too high",
        "   3       4        2     0.750     0.500 +0.250         │███████  a note",
        "   3       4        2     0.250     0.500 -0.250  ███████│",
    ]


def test_a_stream_that_knows_only_ascii_gets_only_ascii() -> None:
    for is_terminal in (False, True):
        stream = TextStream("ascii", is_terminal=is_terminal)
        with View(stream) as view:
            view.say("12 × 8 → more")
            view.status("starting …")
            view.add(row())
        assert stream.getvalue().isascii()


def test_on_a_terminal_the_whole_table_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("LINES", "12")
    monkeypatch.setenv("COLUMNS", "100")
    stream = TextStream(is_terminal=True)
    with View(stream) as view:
        for number in range(40):
            view.add(Row(number, 4, 2, 0.75, 0.5, number == 20, "correction +1" if number == 20 else ""))
    last = stream.getvalue().rsplit("step", 1)[1]
    assert len(last.splitlines()) == 41
    assert "correction +1" in last


def test_on_a_terminal_all_bars_have_one_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    stream = TextStream(is_terminal=True)
    with View(stream) as view:
        for by_sample in (0.0, 0.4, 0.5, 0.6, 1.0):
            view.add(row(by_sample=by_sample, note="correction +4"))
    last = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stream.getvalue()).rsplit("by sample reads", 1)[1].splitlines()[1:]
    assert len(last) == 6
    assert {line.index("│") for line in last} == {last[0].index("│")}
    assert all(line.rstrip().endswith(" correction +4") for line in last[1:])


def test_what_looks_like_markup_is_shown_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    for is_terminal in (False, True):
        stream = TextStream(is_terminal=is_terminal)
        with View(stream) as view:
            view.say("topic [red]x[/red] [/]")
            view.add(row(note="[blink]note[/blink] [/]"))
        assert "topic [red]x[/red] [/]" in stream.getvalue()
        assert "[blink]note[/blink] [/]" in stream.getvalue()

from __future__ import annotations

from typing import Any

import pytest

from stream_metrics.core.fold import Fold
from stream_metrics.core.settings import FoldSettings
from stream_metrics.core.window import Window
from stream_metrics.testing import MemoryLog, close, sample
from stream_metrics.web import board as module
from stream_metrics.web.board import COLUMNS, OPEN_COLUMNS, Board, Viewer
from support.results import result

PREFIX = "stream_metrics."


def filled(*values: bytes) -> Board:
    """Returns a board that has read all there is."""
    board = Board()
    board.take_results(values)
    board.tell(share=None, trouble="")
    return board


def told(board: Board, viewer: Viewer, name: str) -> list[dict[str, Any]]:
    return [news for kind, news in board.look(viewer) if kind == name]


def rows(board: Board, run: str = "r", scope: str = "rollout") -> list[dict[str, Any]]:
    """Returns the closed steps of a run as a new viewer is told of them."""
    (steps,) = told(board, Viewer((run, scope)), "steps")
    return [dict(zip(steps["columns"], row, strict=True)) for row in zip(*steps["columns"].values(), strict=True)]


def open_windows(*events: dict[str, Any]) -> list[Window]:
    log = MemoryLog()
    for event in events:
        log.append(event, unix_ms=1_700_000_000_000)
    fold = Fold(FoldSettings(), log.topic, 0)
    fold.feed(log.records)
    return list(fold.open_windows())


def test_a_result_is_shown_with_its_numbers_and_what_is_odd_about_it() -> None:
    board = filled(result(3, complete=False, reason="timeout", metrics={"rollout/missing_rewards": 2}))
    (row,) = rows(board)
    assert row == {
        "step": 3,
        "attempt": 0,
        "samples": 4,
        "rollouts": 2,
        "by_rollout": 0.5,
        "by_sample": 0.75,
        "flags": 2,
        "reason": 0,
        "late": 0,
        "missing": 2,
        "closed_unix_s": 1_700_000_000,
    }
    (runs,) = told(board, Viewer(), "runs")
    assert runs["reasons"] == ["timeout"]
    assert runs["rows"] == [["r", "rollout", 1, *row.values()]]


def test_steps_come_in_their_order_whatever_the_order_of_the_topic() -> None:
    board = filled(*(result(step) for step in (5, 1, 3, 9, 0)))
    assert [row["step"] for row in rows(board)] == [0, 1, 3, 5, 9]


def test_a_correction_takes_the_place_of_what_it_corrects() -> None:
    board = filled(result(1), result(2), result(1, correction=True, late_samples=3))
    first, second = rows(board)
    assert (first["flags"], first["late"], second["flags"]) == (1, 3, 0)


def test_an_older_attempt_never_takes_the_place_of_a_newer_one() -> None:
    board = filled(result(1, attempt=2), result(1, attempt=1, reason="superseded"))
    (row,) = rows(board)
    assert row["attempt"] == 2
    board.take_results([result(1, attempt=3)])
    (row,) = rows(board)
    assert row["attempt"] == 3


def test_a_result_from_the_future_is_shown_by_what_is_known_of_it() -> None:
    board = filled(
        result(
            1, schema=9, reason="paused", confidence={"low": [1, None]}, metrics={"rollout/new": {"nested": "thing"}}
        )
    )
    (row,) = rows(board)
    assert (row["samples"], row["by_rollout"]) == (4, 0.5)
    (runs,) = told(board, Viewer(), "runs")
    assert runs["reasons"] == ["paused"]


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"\xff",
        b"[" * 100_000,
        result(1)[:-9],
        result(1, type="step_forecast"),
        result(-1),
        result(2**53),
        result(1, run_id=7),
        result(1).replace(b'"metrics": {', b'"metrics": [], "others": {'),
    ],
    ids=range(12),
)
def test_what_is_no_result_is_counted_and_nothing_else(value: bytes) -> None:
    board = filled(value, result(2))
    assert [row["step"] for row in rows(board)] == [2]
    (runs,) = told(board, Viewer(), "runs")
    assert runs["unreadable"] == 1


@pytest.mark.parametrize("scope", ["", "eval/aime24", 'a"b\\c', "line\nbreak\x1b[31m", "é\u202e😀", "<b>"])
def test_a_scope_of_odd_characters_is_a_scope(scope: str) -> None:
    board = filled(result(1, run=f"run {scope}", scope=scope))
    (row,) = rows(board, f"run {scope}", scope)
    assert (row["samples"], row["by_rollout"], row["by_sample"]) == (4, 0.5, 0.75)


@pytest.mark.parametrize("odd", ["many", None, True, [], {"a": 1}])
def test_a_metric_that_is_no_number_is_absent(odd: Any) -> None:
    board = filled(result(1, metrics={"rollout/episode_raw_reward": odd, "rollout/raw_reward": odd}))
    (row,) = rows(board)
    assert row["by_rollout"] != row["by_rollout"] and row["by_sample"] != row["by_sample"]  # NaN, null on the wire


def test_numbers_of_any_size_are_taken() -> None:
    board = filled(
        result(1, metrics={"rollout/num_training_samples": 10**400, "rollout/num_rollouts": -3}, closed_unix_ms=2**60),
        result(2, metrics={"rollout/episode_raw_reward": -1e308, "rollout/raw_reward": 1e-300}, closed_unix_ms=-5),
    )
    first, second = rows(board)
    assert (first["samples"], first["rollouts"], first["closed_unix_s"]) == (2**53 - 1, 0, -1)
    assert (second["by_rollout"], second["by_sample"], second["closed_unix_s"]) == (-1e308, 1e-300, -1)


def test_a_viewer_is_told_once_and_then_only_what_changes() -> None:
    board = filled(result(1), result(1, run="other"))
    viewer = Viewer(("r", "rollout"))
    assert [name for name, _ in board.look(viewer)] == ["progress", "open_steps", "letters", "runs", "steps"]
    assert board.look(viewer) == []
    board.take_results([result(1, run="other", attempt=1)])
    ((name, news),) = board.look(viewer)
    assert (name, news["whole"], [row[0] for row in news["rows"]]) == ("runs", False, ["other"])
    board.take_results([result(4), result(2), result(4, correction=True)])
    (steps,) = told(board, viewer, "steps")
    assert (steps["whole"], steps["columns"]["step"], steps["columns"]["flags"]) == (False, [2, 4], [0, 1])
    assert board.look(viewer) == []


def test_a_viewer_of_all_is_told_of_the_steps_of_each_run_from_now_on() -> None:
    board = filled(result(1))
    viewer = Viewer(is_all=True)
    assert told(board, viewer, "steps") == []
    board.take_results([result(2), result(7, run="other")])
    assert [(one["run"], one["columns"]["step"]) for one in told(board, viewer, "steps")] == [
        ("other", [7]),
        ("r", [2]),
    ]


def test_a_viewer_too_far_behind_gets_everything_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_CHANGES", 3)
    board = filled(result(1))
    viewer = Viewer(("r", "rollout"))
    board.look(viewer)
    board.take_results([result(step) for step in range(2, 5)])
    (steps,) = told(board, viewer, "steps")
    assert (steps["whole"], steps["columns"]["step"]) == (False, [2, 3, 4])
    board.take_results([result(step) for step in range(5, 9)])
    (steps,) = told(board, viewer, "steps")
    assert (steps["whole"], steps["columns"]["step"]) == (True, [1, 2, 3, 4, 5, 6, 7, 8])


def test_a_long_run_comes_in_parts_the_newest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PART", 3)
    board = filled(*(result(step) for step in range(8)))
    viewer = Viewer(("r", "rollout"))
    parts = told(board, viewer, "steps")
    while viewer.is_owed:
        if len(parts) == 1:  # what changes meanwhile comes too, and nothing is left out for it
            board.take_results([result(8), result(0, correction=True)])
        parts += told(board, viewer, "steps")
    assert [(part["whole"], part["columns"]["step"]) for part in parts] == [
        (True, [5, 6, 7]),
        (False, [0, 8]),
        (False, [2, 3, 4]),
        (False, [0, 1]),
    ]
    assert board.look(viewer) == []


def test_a_viewer_gets_no_more_steps_than_it_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PART", 3)
    board = filled(*(result(step) for step in range(20)))
    viewer = Viewer(("r", "rollout"), count=5)
    (first,), (second,) = told(board, viewer, "steps"), told(board, viewer, "steps")
    assert (first["columns"]["step"], second["columns"]["step"]) == ([17, 18, 19], [15, 16])
    assert not viewer.is_owed


def test_memory_is_bounded_and_the_run_unseen_for_longest_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_STEPS", 20)
    board = filled(*(result(step, run="old") for step in range(12)), *(result(step, run="new") for step in range(8)))
    viewer = Viewer(("old", "rollout"))
    board.look(viewer)
    board.take_results([result(8, run="new")])
    (steps,) = told(board, viewer, "steps")
    assert (steps["whole"], steps["columns"]["step"][0]) == (True, 2)  # two at a time, so that it is seldom
    (runs,) = told(board, Viewer(), "runs")
    assert (runs["steps"], runs["forgotten"]) == (19, 2)
    board.take_results([result(step, run="new") for step in range(9, 40)])
    (runs,) = told(board, Viewer(), "runs")
    assert [row[0] for row in runs["rows"]] == ["new"] and runs["steps"] <= 20


def test_so_many_runs_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SERIES", 2)
    board = filled(result(1, run="a"), result(1, run="b"), result(2, run="a"), result(1, run="c"))
    (runs,) = told(board, Viewer(), "runs")
    assert [row[0] for row in runs["rows"]] == ["a", "c"]


def test_reasons_are_bounded() -> None:
    board = filled(*(result(step, reason=f"reason {step}") for step in range(100)))
    (runs,) = told(board, Viewer(), "runs")
    assert len(runs["reasons"]) == 33 and runs["reasons"][-1] == "other"
    assert runs["reasons"][rows(board)[99]["reason"]] == "other"


def test_while_the_topics_are_read_only_that_is_told() -> None:
    board = Board()
    board.take_results([result(1)])
    board.tell(share=0.4, trouble="")
    viewer = Viewer(("r", "rollout"))
    assert board.look(viewer) == [
        ("progress", {"share": 0.4, "trouble": ""}),
        ("open_steps", {"total": 0, "rows": []}),
    ]
    board.tell(share=None, trouble="")
    assert [name for name, _ in board.look(viewer)] == ["progress", "letters", "runs", "steps"]


def test_what_an_open_step_holds_and_waits_for() -> None:
    board = filled()
    board.is_watched = True
    board.take_open(
        open_windows(
            sample(1, 1.0, run_id="r", group_index=0, rollout_id=1),
            sample(1, 1.0, run_id="r", group_index=0, rollout_id=1),
            sample(1, 0.0, run_id="r", group_index=1, rollout_id=1),
            close(1, run_id="r", producer="a", producers=2, expected_samples=9),
            sample(2, 0.0, run_id="r"),
        )
    )
    (news,) = told(board, Viewer(), "open_steps")
    first, second = (dict(zip(OPEN_COLUMNS, row, strict=True)) for row in news["rows"])
    assert (first["step"], first["samples"], first["rollouts"], first["groups"]) == (1, 3, 2, 2)
    assert (first["is_closing"], first["heard"], first["producers"], first["expected"]) == (True, 1, 2, 9)
    assert (second["step"], second["is_closing"], second["expected"]) == (2, False, None)
    assert first["opened_unix_ms"] == first["closing_unix_ms"] == 1_700_000_000_000


def test_nothing_is_handed_over_while_nobody_looks() -> None:
    board = filled()
    board.take_open(open_windows(sample(1, 1.0)))
    assert told(board, Viewer(), "open_steps") == [{"total": 0, "rows": []}]


def test_of_very_many_open_steps_the_oldest_and_the_newest_are_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_OPEN", 4)
    board = filled()
    board.is_watched = True
    board.take_open(open_windows(*(sample(step, 1.0) for step in range(9))))
    (news,) = told(board, Viewer(), "open_steps")
    assert (news["total"], [row[2] for row in news["rows"]]) == (9, [0, 1, 7, 8])


def test_a_step_that_has_closed_is_open_no_more_though_the_hand_over_is_older() -> None:
    board = filled()
    board.is_watched = True
    board.take_open(open_windows(sample(1, 1.0, run_id="r"), sample(2, 1.0, run_id="r")))
    board.take_results([result(1)])
    (news,) = told(board, Viewer(), "open_steps")
    assert (news["total"], [row[2] for row in news["rows"]]) == (1, [2])


def test_dead_letters_are_told_by_their_headers_the_newest_of_them() -> None:
    board = filled()
    for number in range(module.MAX_LETTERS + 5):
        headers = [("trace", b"x"), (f"{PREFIX}reason", b"too_late"), (f"{PREFIX}offset", str(number).encode())]
        board.take_letter(headers, 7, PREFIX)
    board.take_letter([(f"{PREFIX}reason", b"\xff<b>"), (f"{PREFIX}message", None)], None, PREFIX)
    (news,) = told(board, Viewer(), "letters")
    assert len(news["rows"]) == module.MAX_LETTERS
    assert news["rows"][0] == {
        "reason": "too_late",
        "error": "",
        "message": "",
        "topic": "",
        "partition": "",
        "offset": "6",
        "unix_ms": 7,
    }
    assert news["rows"][-1]["reason"] == "\ufffd<b>"


def test_a_board_that_was_cleared_tells_everything_anew() -> None:
    board = filled(result(1))
    viewer = Viewer(("r", "rollout"))
    board.take_letter([(f"{PREFIX}reason", b"late")], 1, PREFIX)
    board.look(viewer)
    board.clear()
    board.take_results([result(2)])
    board.take_letter([(f"{PREFIX}reason", b"too_late")], 1, PREFIX)
    board.tell(share=None, trouble="")
    news = dict(board.look(viewer))
    assert (news["steps"]["whole"], news["steps"]["columns"]["step"]) == (True, [2])
    assert [letter["reason"] for letter in news["letters"]["rows"]] == ["too_late"]


def test_columns_are_named_once() -> None:
    assert len({name for name, _ in COLUMNS}) == len(COLUMNS)

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from stream_metrics.commands import explain
from stream_metrics.config import Settings
from stream_metrics.exit_codes import ExitCode
from stream_metrics.testing import close, sample


@pytest.fixture
def path(tmp_path: Path) -> str:
    events = [
        *(sample(3, 1.0, run_id="r", group_index=0, rollout_id=10) for _ in range(3)),
        sample(3, 0.0, run_id="r", group_index=0, rollout_id=11),
        *(sample(3, 0.0, run_id="r", group_index=1, rollout_id=number) for number in (1, 2)),
        sample(3, None, run_id="r", group_index=1, rollout_id=3),
        *(sample(3, reward, run_id="r", rollout_id="x") for reward in (0.25, 0.75)),
        close(3, run_id="r"),
        sample(4, 1.0, run_id="r", scope="eval/aime"),
    ]
    made = tmp_path / "log.jsonl"
    made.write_bytes(b"".join(msgspec.json.encode(event) + b"\n" for event in events))
    return str(made)


def test_a_step_from_its_result_down_to_its_samples(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert explain.main(Settings(), path, 3, "r") == ExitCode.OK
    text = capsys.readouterr().out
    for line in (
        "step 3 of run 'r', scope rollout, attempt 0: closed, complete, 9 samples, 0 late",
        "  rollout/episode_raw_reward                       0.3",
        "no spread, so nothing to learn: group 1",
        "reward missing, left out: #6",
        "samples of one rollout disagree: rollout 'x' of no group",
        "group 0: 2 of 2 rollouts scored, mean 0.5, std 0.5",
        "  rollout 10: 1.0 = mean of #0 1.0, #1 1.0, #2 1.0",
        "group 1: 2 of 3 rollouts scored, mean 0.0, std 0.0, no spread",
        "  rollout 3: no reward = mean of #6 missing",
    ):
        assert f"{line}\n" in text


def test_a_long_step_is_cut_and_json_is_not(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert explain.main(Settings(), path, 3, limit=1) == ExitCode.OK
    text = capsys.readouterr().out
    assert "\n2 more groups\n" in text
    assert "  1 more rollouts\n" in text
    assert explain.main(Settings(), path, 3, limit=1, is_json=True) == ExitCode.OK
    made = json.loads(capsys.readouterr().out)
    assert [len(group["rollouts"]) for group in made["groups"]] == [2, 3, 1]


def test_an_evaluation_has_its_scope(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert explain.main(Settings(), path, 4, scope="eval/aime") == ExitCode.OK
    assert "still open" in capsys.readouterr().out


def test_a_step_that_isn_t_there_is_an_error_that_says_what_is(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert explain.main(Settings(), path, 99) == ExitCode.WRONG_SETTINGS
    assert explain.main(Settings(), path + ".missing", 99) == ExitCode.WRONG_SETTINGS
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "run 'r' scope 'rollout': 1 of steps 3 to 3" in captured.err

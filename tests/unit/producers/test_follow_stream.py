"""The follower of prime-rl's stream, over indexes that a test writes as the file monitor does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stream_metrics.events import StepClose
from stream_metrics.producers import RolloutProducer
from stream_metrics.producers.follow_stream import BATCHES, EPISODES, StreamFollower


class Run:
    """What a run of prime-rl has written so far, a follower of it, its clock, and what it sent."""

    def __init__(self, kafka: Any, directory: Path) -> None:
        self.kafka = kafka
        self.directory = directory
        self.now = 0.0
        self.unix_ms = 1000
        self.follower = self.another()

    def another(self, **options: Any) -> StreamFollower:
        connect = self.kafka.connect
        self.follower = StreamFollower(
            self.directory,
            lambda attempt: RolloutProducer("nowhere:1", attempt=attempt, spool_directory="", connect=connect),
            clock=lambda: self.now,
            unix_ms=lambda: self.unix_ms,
            **options,
        )
        return self.follower

    def arrive(self, name: str, reward: float | None = 1.0, traces: int = 1, **fields: Any) -> None:
        """A row as `index_row` makes it."""
        row = {
            "line": 1,
            "offset": 0,
            "id": name,
            "kind": "train",
            "trace_ids": [f"{name}-{number}" for number in range(traces)],
            "env": "coding",
            "group": f"group-{name[0]}",
            "ok": True,
            "num_errors": 0,
            "reward": reward,
            "advantage": None,
            "input_tokens": 10,
            "output_tokens": 20,
            "turns": 3,
            "branches": traces,
            "stop_condition": None,
            "truncated": False,
            "chunk": 0,
        }
        self._write(EPISODES, row | fields)

    def ship(self, step: int, *names: str, time: float = 0.0) -> None:
        """Rows as `update_index_row` makes them of what `stamp_ship` says."""
        for name in names:
            info = {"effective": True, "ship": {"step": step, "time": time}, "advantage": 0.5}
            self._write(BATCHES, {"trace_id": name, "chunk": 0, "offset": 0, "info": info})

    def look(self, after: float = 0.0) -> bool:
        self.now += after
        is_new = self.follower.look()
        assert self.follower.flush(5)
        return is_new

    @property
    def samples(self) -> list[tuple[int, str, int, str, Any, str]]:
        """(attempt, scope, step, rollout, reward, id) of each sample."""
        made = []
        for event in self.kafka.events:
            if not isinstance(event, StepClose):
                for one in getattr(event, "samples", [event]):
                    made.append((event.attempt, event.scope, event.step, one.rollout_id, one.reward, one.sample_id))
        return made

    @property
    def closes(self) -> list[tuple[int, str, int, int | None]]:
        return [(one.attempt, one.scope, one.step, one.expected_samples) for one in self.kafka.closes]

    def _write(self, path: str | Path, row: dict[str, Any]) -> None:
        path = self.directory / path
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(json.dumps(row) + "\n")


@pytest.fixture
def run(kafka: Any, tmp_path: Path) -> Run:
    return Run(kafka, tmp_path)


def test_an_episode_is_sent_once_its_batch_is_known_under_the_step_of_that(run: Run) -> None:
    assert not run.look()
    run.arrive("a", 0.5)
    run.arrive("filtered", 0.0)
    run.arrive("b", None, ok=False)
    assert not run.look()
    run.ship(7, "a-0", "b-0")
    assert run.look()
    assert run.samples == [(1000, "rollout", 7, "a", 0.5, "a:0"), (1000, "rollout", 7, "b", None, "b:0")]
    (event, *_) = [one for one in run.kafka.events if not isinstance(one, StepClose)]
    (first, second) = event.samples
    assert (first.group_index, first.status, first.data_source) == ("group-a", "completed", "coding")
    assert (first.response_length, first.values) == (20, {"turns": 3.0})
    assert second.status == "failed"
    assert not run.look(4.9)
    assert run.look(0.2)
    assert run.closes == [(1000, "rollout", 7, 2)]
    assert not run.look(100)


def test_a_rollout_has_a_sample_for_each_branch_that_compaction_made_of_it(run: Run) -> None:
    run.arrive("compacted", 1.0, branches=3, truncated=True)
    run.arrive("team", 0.5, traces=2)
    run.ship(1, "compacted-0", "team-0", "team-1")
    run.look()
    assert [(one[3], one[5]) for one in run.samples] == [
        ("compacted", "compacted:0"),
        ("compacted", "compacted:1"),
        ("compacted", "compacted:2"),
        ("team", "team:0"),
        ("team", "team:1"),
    ]
    assert {sample["status"] for sample in run.kafka.samples} == {"truncated", "completed"}
    assert all(sample.get("response_length") is None for sample in run.kafka.samples)


def test_the_next_batch_closes_the_one_before_and_an_evaluation_closes_no_step_of_training(run: Run) -> None:
    for name in "abcd":
        run.arrive(name, kind="eval" if name == "c" else "train")
    run.ship(1, "a-0")
    run.ship(0, "c-0")
    run.ship(1, "b-0")
    run.look()
    assert run.closes == []
    run.ship(2, "d-0")
    run.look()
    assert run.closes == [(1000, "rollout", 1, 2)]
    run.look(10)
    assert sorted(run.closes) == [(1000, "eval/coding", 0, 1), (1000, "rollout", 1, 2), (1000, "rollout", 2, 1)]


def test_a_step_that_a_restarted_trainer_does_again_is_a_higher_attempt_with_what_follows(run: Run) -> None:
    for number in range(4):
        run.arrive(f"a{number}")
    run.ship(1, "a0-0", time=1.0)
    run.ship(2, "a1-0", time=2.0)
    run.look()
    run.unix_ms = 2000
    run.ship(2, "a2-0", time=3.0)
    run.ship(3, "a3-0", time=4.0)
    run.look()
    run.look(10)
    assert run.closes == [
        (1000, "rollout", 1, 1),
        (1000, "rollout", 2, 1),
        (2000, "rollout", 2, 1),
        (2000, "rollout", 3, 1),
    ]


def test_a_restarted_follower_goes_on_behind_what_is_closed_and_acknowledged(run: Run) -> None:
    for name in "abc":
        run.arrive(name)
    run.ship(1, "a-0")
    run.look()
    run.look(10)
    assert run.follower.close()
    assert run.follower.sent() == (1, 1)
    run.ship(2, "b-0")
    run.unix_ms = 5000
    run.another()
    run.look()
    run.follower.close()  # without having closed step 2
    run.another()
    run.ship(2, "c-0")
    run.look()
    run.look(10)
    assert run.samples == [
        (1000, "rollout", 1, "a", 1.0, "a:0"),
        (1000, "rollout", 2, "b", 1.0, "b:0"),
        (1000, "rollout", 2, "b", 1.0, "b:0"),
        (1000, "rollout", 2, "c", 1.0, "c:0"),
    ]
    assert run.closes == [(1000, "rollout", 1, 1), (1000, "rollout", 2, 2)]


def test_a_directory_made_anew_is_a_higher_attempt(run: Run) -> None:
    for number in range(9):
        run.arrive(f"a{number}")
    run.ship(1, *(f"a{number}-0" for number in range(9)))
    run.look()
    run.look(10)
    for name in (EPISODES, BATCHES):
        (run.directory / name).unlink()
    assert not run.look()  # a file that is away for a moment says nothing
    run.unix_ms = 3000
    run.arrive("b")
    run.ship(1, "b-0")
    run.look()
    run.look(10)
    assert run.closes[1:] == [(3000, "rollout", 1, 1)]


def test_other_annotations_half_lines_and_traces_that_nobody_knows_are_left_out(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    run.arrive("a")
    run._write(BATCHES, {"trace_id": "a-0", "chunk": 0, "offset": 0, "info": {"judged": True}})
    run._write(BATCHES, {"trace_id": "a-0", "chunk": 0, "offset": 0, "info": None})
    with (run.directory / BATCHES).open("a") as file:
        file.write("no json\n")
    run.ship(1, "nobody-0", "a-0")
    with (run.directory / BATCHES).open("a") as file:
        file.write('{"trace_id": "half')
    run.look()
    assert [one[3] for one in run.samples] == ["a"]
    assert "nobody-0 is in a batch and in no episode" in caplog.text


def test_a_backlog_is_read_no_faster_than_it_is_acknowledged(
    run: Run, kafka: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stream_metrics.producers.follow_stream.MAX_PENDING", 300)
    kafka.is_full = True
    for number in range(2_000):
        run.arrive(f"a{number}")
    run.ship(1, *(f"a{number}-0" for number in range(2_000)))
    for _ in range(5):
        assert run.follower.look()
    assert run.follower._pending() < 1_000
    kafka.is_full = False
    while run.look():
        pass
    run.look(10)
    assert run.closes == [(1000, "rollout", 1, 2_000)]


def test_episodes_that_no_batch_takes_do_not_pile_up(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stream_metrics.producers.follow_stream.MAX_WAITING", 3)
    for number in range(10):
        run.arrive(f"a{number}")
    run.ship(1, "a0-0", "a9-0")
    run.look()
    assert [one[3] for one in run.samples] == ["a9"]
    assert len(run.follower._episodes) == len(run.follower._traces) == 2

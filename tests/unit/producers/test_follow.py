"""The follower, over files that a test writes as the trainers do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stream_metrics import events
from stream_metrics.events import StepClose
from stream_metrics.producers import RolloutProducer
from stream_metrics.producers.follow import Follower, PrimeRlLayout, VerlLayout


class Following:
    """A follower of a directory, its clock, and what it sent."""

    def __init__(self, kafka: Any, directory: Path, layout: Any = None, **options: Any) -> None:
        self.kafka = kafka
        self.now = 0.0
        self.unix_ms = 1000
        self.follower = Follower(
            directory,
            layout or VerlLayout(),
            lambda attempt: RolloutProducer("nowhere:1", attempt=attempt, spool_directory="", connect=kafka.connect),
            clock=lambda: self.now,
            unix_ms=lambda: self.unix_ms,
            **options,
        )

    def look(self, after: float = 0.0) -> bool:
        self.now += after
        is_new = self.follower.look()
        assert self.follower.producer.flush(5)
        return is_new

    @property
    def closes(self) -> list[tuple[int, int, int | None]]:
        """(attempt, step, expected samples) of each close marker."""
        return [(one.attempt or 0, one.step, one.expected_samples) for one in self.kafka.closes]


def write(path: Path, lines: list[Any], mode: str = "w") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open(mode) as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def verl(score: float, prompt: str = "p", **extra: Any) -> dict[str, Any]:
    """A line as `_dump_generations` of `verl/trainer/ppo/ray_trainer.py` writes it."""
    return {"input": prompt, "output": "o", "gts": "g", "score": score, "step": 1, **extra}


def test_a_file_is_sent_as_it_grows_and_its_step_closed_once_it_rests(kafka: Any, tmp_path: Path) -> None:
    one = Following(kafka, tmp_path)
    assert not one.look()
    write(tmp_path / "7.jsonl", [verl(1.0), verl(0.0, "q")])
    assert one.look()
    write(tmp_path / "7.jsonl", [verl(0.5)], "a")
    assert one.look(4.9)
    assert not one.look(4.9)
    assert one.closes == []
    assert one.look(0.2)
    assert one.closes == [(1000, 7, 3)]
    assert not one.look(100)
    assert [(s["sample_id"], s["position"], s["index"], s["reward"]) for s in kafka.samples] == [
        (0, 0, 0, 1.0),
        (1, 1, 1, 0.0),
        (2, 2, 2, 0.5),
    ]
    groups = [s["group_index"] for s in kafka.samples]
    assert groups[0] == groups[2] != groups[1]
    one.follower.close()


def test_a_later_step_with_lines_closes_the_one_before(kafka: Any, tmp_path: Path) -> None:
    one = Following(kafka, tmp_path)
    write(tmp_path / "1.jsonl", [verl(1.0)])
    one.look()
    write(tmp_path / "10.jsonl", [])
    assert not one.look(1)
    write(tmp_path / "10.jsonl", [verl(1.0)])
    one.look(1)
    assert one.closes == [(1000, 1, 1)]


def test_half_a_line_waits_for_the_rest_and_keeps_the_step_open(kafka: Any, tmp_path: Path) -> None:
    one = Following(kafka, tmp_path)
    (tmp_path / "1.jsonl").write_text('{"input": "p", "sco')
    assert not one.look()
    assert not one.look(100)
    assert one.closes == []
    with (tmp_path / "1.jsonl").open("a") as file:
        file.write('re": 0.5}\n')
    one.look()
    one.look(10)
    assert one.closes == [(1000, 1, 1)]
    assert kafka.samples[0]["reward"] == 0.5


def test_a_uid_of_the_newer_writer_names_prompt_rollout_and_sample(kafka: Any, tmp_path: Path) -> None:
    one = Following(kafka, tmp_path)
    write(tmp_path / "1.jsonl", [verl(1.0, uid=f"abc_{session}_{index}") for session in (0, 1) for index in (0, 1)])
    write(tmp_path / "2.jsonl", [verl(1.0, uid="plain", acc=True, num_turns=3, note="x", data_source="gsm8k")])
    one.look()
    assert [(s["group_index"], s["rollout_id"]) for s in kafka.samples] == [
        ("abc", "abc_0"),
        ("abc", "abc_0"),
        ("abc", "abc_1"),
        ("abc", "abc_1"),
        ("plain", None),
    ]
    assert kafka.samples[4]["values"] == {"acc": True, "num_turns": 3}
    assert kafka.samples[4]["data_source"] == "gsm8k"


def test_a_nonfinite_score_is_sent_as_such(kafka: Any, tmp_path: Path) -> None:
    one = Following(kafka, tmp_path)
    write(tmp_path / "1.jsonl", [verl(float("nan"))])
    one.look()
    assert b"NaN" in kafka.log[0]


def test_a_line_that_is_none_is_counted_and_the_rest_goes_on(
    kafka: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = Following(kafka, tmp_path)
    (tmp_path / "1.jsonl").write_bytes(b'{"score": 1}\nnot json\n[1]\n\xff\n' + b"[" * 50_000 + b'\n{"score": 0}\n')
    one.look()
    one.look(10)
    assert [s["reward"] for s in kafka.samples] == [1, 0]
    assert kafka.closes[0].dropped == {"unreadable": 4}
    assert caplog.text.count("is left out as unreadable") == 1


def test_a_restarted_follower_goes_on_where_it_was_and_sends_nothing_twice(kafka: Any, tmp_path: Path) -> None:
    first = Following(kafka, tmp_path)
    write(tmp_path / "1.jsonl", [verl(1.0)])
    write(tmp_path / "2.jsonl", [verl(1.0)])
    first.look()
    first.look()
    assert first.follower.close()
    second = Following(kafka, tmp_path)
    second.unix_ms = 9000
    second.look()
    second.look(10)
    assert second.closes == [(1000, 1, 1), (1000, 2, 1)]
    assert len({(event.step, s.sample_id) for event in kafka.events if (s := event) and hasattr(s, "sample_id")}) == 2


def test_a_step_that_is_written_anew_is_a_higher_attempt_and_so_is_what_follows(kafka: Any, tmp_path: Path) -> None:
    one = Following(kafka, tmp_path)
    for step in (1, 2, 3):
        write(tmp_path / f"{step}.jsonl", [verl(1.0), verl(0.0)])
    one.look()
    one.look(10)
    one.unix_ms = 5000
    write(tmp_path / "2.jsonl", [verl(0.5)])
    one.look()
    one.look(10)
    write(tmp_path / "3.jsonl", [verl(0.25)] * 3)
    one.look()
    one.look(10)
    write(tmp_path / "4.jsonl", [verl(0.5)])
    one.look()
    one.look(10)
    assert one.closes == [(1000, 1, 2), (1000, 2, 2), (1000, 3, 2), (5000, 2, 1), (5000, 3, 3), (5000, 4, 1)]
    assert one.follower.close()
    again = Following(kafka, tmp_path)
    assert again.follower.attempt == 5000
    assert not again.look()


def test_an_open_step_that_is_written_anew_is_a_higher_attempt_too(kafka: Any, tmp_path: Path) -> None:
    one = Following(kafka, tmp_path)
    write(tmp_path / "1.jsonl", [verl(1.0)])
    one.look()
    one.unix_ms = 5000
    write(tmp_path / "1.jsonl", [verl(0.5)] * 2)
    one.look()
    one.look(10)
    assert one.closes == [(5000, 1, 2)]
    assert [s["reward"] for s in kafka.samples] == [1.0, 0.5, 0.5]


def test_a_step_that_is_open_when_another_is_done_again_is_sent_whole_under_the_higher_attempt(
    kafka: Any, tmp_path: Path
) -> None:
    one = Following(kafka, tmp_path)
    write(tmp_path / "1.jsonl", [verl(1.0)])
    write(tmp_path / "2.jsonl", [verl(1.0)])
    one.look()
    one.look()
    assert one.closes == [(1000, 1, 1)]
    one.unix_ms = 5000
    write(tmp_path / "1.jsonl", [verl(0.5), verl(0.5)])
    write(tmp_path / "2.jsonl", [verl(1.0)], "a")
    one.look()
    one.look(10)
    assert one.closes == [(1000, 1, 1), (5000, 1, 2), (5000, 2, 2)]


def test_lines_added_after_the_close_are_the_step_done_again(kafka: Any, tmp_path: Path) -> None:
    one = Following(kafka, tmp_path)
    write(tmp_path / "1.jsonl", [verl(1.0)] * 2)
    one.look()
    one.look(10)
    one.unix_ms = 5000
    write(tmp_path / "1.jsonl", [verl(0.0)], "a")
    one.look()
    one.look(10)
    assert one.closes == [(1000, 1, 2), (5000, 1, 1)]
    assert [s["reward"] for s in kafka.samples] == [1.0, 1.0, 0.0]


def test_a_memory_that_cannot_be_used_is_said_and_all_is_sent_again(
    kafka: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / ".stream-metrics-follow.json").write_text("{}")
    one = Following(kafka, tmp_path, attempt=3)
    write(tmp_path / "1.jsonl", [verl(1.0)])
    one.look()
    one.look(10)
    assert one.closes == [(3, 1, 1)]
    assert "can't be used" in caplog.text


def test_a_directory_that_cannot_be_written_to_does_no_harm(kafka: Any, tmp_path: Path) -> None:
    one = Following(kafka, tmp_path, state=tmp_path / "no" / "such" / "folder.json")
    write(tmp_path / "1.jsonl", [verl(1.0)])
    one.look()
    one.look(10)
    assert one.closes == [(1000, 1, 1)]


def episode(number: int, *traces: Any, ok: bool = True) -> dict[str, Any]:
    """A line as prime-rl's file monitor wrote it up to v0.9.1.dev28: verifiers' `Episode.to_record()`."""
    return {
        "id": f"episode-{number}",
        "env": {"id": "coding"},
        "group": {"id": f"group-{number // 2}"},
        "run": {"id": "run-1", "work": {"type": "train", "step": 4}},
        "ok": ok,
        "errors": [],
        "traces": list(traces),
    }


def trace(name: str, **rewards: Any) -> dict[str, Any]:
    return {"id": name, "task": {"key": "k"}, "rewards": rewards, "nodes": []}


def test_prime_rls_effective_episodes_are_sent_a_trace_a_sample(kafka: Any, tmp_path: Path) -> None:
    one = Following(kafka, tmp_path, PrimeRlLayout())
    good = trace("t0", tests={"score": 1.0, "weight": 1.0}, form={"score": 1.0, "weight": 0.25}, judge=None)
    other = {**trace("t1", tests={"score": 0.0, "weight": 1.0}), "agent": {"trainable": True}}
    frozen = {**trace("t2", tests={"score": 5.0, "weight": 1.0}), "agent": {"trainable": False}}
    lines = [episode(0, good, frozen), episode(1, other), episode(2, ok=False), episode(3, trace("t3", judge=None))]
    write(tmp_path / "step_4" / "train" / "all" / "traces.jsonl", [*lines, episode(9, good)])
    write(tmp_path / "step_4" / "train" / "effective" / "traces.jsonl", lines)
    write(tmp_path / "step_4" / "eval" / "effective" / "traces.jsonl", [episode(0, good)])
    one.look()
    one.look(10)
    samples = [event for event in kafka.events if event.scope == "rollout" and not isinstance(event, StepClose)]
    train = [one for event in samples for one in getattr(event, "samples", [event])]  # one alone isn't batched
    assert [(s.rollout_id, s.group_index, s.reward, s.data_source) for s in train] == [
        ("t0", "group-0", 1.25, "coding"),
        ("t1", "group-0", 0.0, "coding"),
        ("t3", "group-1", None, "coding"),
    ]
    assert train[0].values == {"rewards/tests": 1.0, "rewards/form": 1.0}
    assert {(close.scope, close.step, close.expected_samples) for close in kafka.closes} == {
        ("rollout", 4, 3),
        ("eval", 4, 1),
    }
    (close,) = [close for close in kafka.closes if close.scope == "rollout"]
    assert close.dropped == {"failed": 1}


def test_a_backlog_is_read_no_faster_than_it_is_acknowledged(
    kafka: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stream_metrics.producers.follow.MAX_PENDING", 300)
    kafka.is_full = True
    one = Following(kafka, tmp_path)
    write(tmp_path / "1.jsonl", [verl(1.0)] * 2000)
    for _ in range(5):
        assert one.follower.look()
    assert one.follower.producer.counts.pending < 1000
    kafka.is_full = False
    while one.look():
        pass
    one.look(10)
    assert len(kafka.samples) == 2000
    assert isinstance(kafka.events[-1], events.StepClose)
    assert kafka.closes[0].expected_samples == 2000

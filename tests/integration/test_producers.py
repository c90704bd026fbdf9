"""The producer against a real broker that works, dies, hangs or was never there, and in processes that fork and
exit."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import textwrap
import time
import types
from collections.abc import Sequence
from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies as st

from stream_metrics import events
from stream_metrics.core.settings import FoldSettings
from stream_metrics.producers import RolloutProducer
from stream_metrics.producers.hooks import _sglang_trainers
from stream_metrics.testing import MemoryLog
from support.brokers import Broker
from support.topics import create_topic, read_topic
from support.waiting import wait_until

# A call may take its budget of 0.2 s, and reading 2,000 samples about 10 ms. The rest is for a machine that is busy.
LONGEST_CALL_SECONDS = 0.2 + 0.3


def results(broker: Broker, topic: str, settings: FoldSettings | None = None) -> dict[tuple[str, int, int], object]:
    """Returns what a sidecar would publish, last result of each (scope, attempt, step)."""
    log = MemoryLog(topic)
    for record in read_topic(broker.bootstrap, topic):
        log.append(record.value, key=record.key)
    outcome = log.fold(settings)
    assert outcome.dead_letters == []
    return {(one.scope, one.attempt, one.step): one for one in outcome.results}


def step_samples(step: int, count: int = 2000) -> list[dict[str, object]]:
    return [{"group_index": n // 8, "rollout_id": n // 2, "reward": float((n + step) % 2)} for n in range(count)]


def train(producer: RolloutProducer, steps: Sequence[int], count: int = 2000) -> float:
    """Emits and closes the steps; returns the longest time that a call took."""
    longest = 0.0
    for step in steps:
        samples = step_samples(step, count)
        for call in (lambda: producer.emit_step(samples, step=step), lambda: producer.close_step(step)):  # noqa: B023
            start = time.perf_counter()
            call()
            longest = max(longest, time.perf_counter() - start)
    return longest


def assert_complete(found: dict[tuple[str, int, int], object], steps: Sequence[int], count: int = 2000) -> None:
    assert sorted(step for _, _, step in found) == sorted(steps)
    for result in found.values():
        assert isinstance(result, events.StepMetrics)
        assert result.complete
        assert result.metrics["rollout/num_training_samples"] == count
        assert result.metrics["rollout/episode_raw_reward"] == 0.5


def test_steps_arrive_complete_on_one_partition_and_in_order(broker: Broker, tmp_path: Path) -> None:
    topic = create_topic(broker.bootstrap, partitions=4)
    with RolloutProducer(broker.bootstrap, topic, run_id="run", spool_directory=tmp_path) as producer:
        assert train(producer, range(5)) < LONGEST_CALL_SECONDS
        assert producer.flush(30)
    assert len({record.partition for record in read_topic(broker.bootstrap, topic)}) == 1
    found = results(broker, topic)
    assert_complete(found, range(5))
    assert not any(result.correction for result in found.values())  # type: ignore[attr-defined]
    assert list(tmp_path.iterdir()) == []


def test_two_producers_close_one_step_together(broker: Broker, tmp_path: Path) -> None:
    topic = create_topic(broker.bootstrap)
    for rank in range(2):
        with RolloutProducer(
            broker.bootstrap, topic, producer=f"rank{rank}", producers=2, spool_directory=tmp_path
        ) as producer:
            producer.emit_step([{"rollout_id": f"{rank}-{n}", "reward": float(rank)} for n in range(50)], step=1)
            producer.close_step(1)
            assert producer.flush(30)
        if rank == 0:
            assert results(broker, topic) == {}
    assert_complete(results(broker, topic), [1], 100)


def test_a_step_emitted_twice_counts_once(broker: Broker, tmp_path: Path) -> None:
    topic = create_topic(broker.bootstrap)
    with RolloutProducer(broker.bootstrap, topic, spool_directory=tmp_path) as producer:
        for _ in range(2):
            train(producer, [1], 100)
            assert producer.flush(30)
    found = results(broker, topic)
    assert_complete(found, [1], 100)
    assert not next(iter(found.values())).correction  # type: ignore[attr-defined]


def test_a_restarted_trainers_attempt_replaces_the_one_before(broker: Broker, tmp_path: Path) -> None:
    topic = create_topic(broker.bootstrap)
    for attempt, steps in ((0, [1, 2]), (1, [2, 3])):
        with RolloutProducer(broker.bootstrap, topic, attempt=attempt, spool_directory=tmp_path) as producer:
            train(producer, steps, 100)
            assert producer.flush(30)
    assert sorted(results(broker, topic)) == [
        ("rollout", 0, 1),
        ("rollout", 0, 2),
        ("rollout", 1, 2),
        ("rollout", 1, 3),
    ]


def test_a_topic_that_is_made_later_gets_everything(broker: Broker, tmp_path: Path) -> None:
    topic = create_topic(broker.bootstrap)
    later = f"{topic}-later"
    with RolloutProducer(broker.bootstrap, later, spool_directory=tmp_path, spool_after_seconds=1.0) as producer:
        assert train(producer, range(3), 100) < LONGEST_CALL_SECONDS
        # A broker that makes topics by itself, which those of this suite don't, leaves nothing to see here.
        wait_until(lambda: 300 in (producer.counts.spooled, producer.counts.acknowledged), "the spool")
        if producer.counts.spooled:
            create_named_topic(broker, later)
        assert producer.flush(60)
    assert_complete(results(broker, later), range(3), 100)


def create_named_topic(broker: Broker, name: str) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(30)


def test_a_record_over_the_topics_limit_takes_no_other_with_it(broker: Broker, tmp_path: Path) -> None:
    topic = create_topic(broker.bootstrap, config={"max.message.bytes": "3000"})
    with RolloutProducer(broker.bootstrap, topic, spool_directory=tmp_path, metadata_keys=("noise",)) as producer:
        noise = os.urandom(4000).hex()
        producer.emit_step(
            [{"reward": 1.0, "metadata": {"noise": noise if n == 7 else "", "raw_reward": 1.0}} for n in range(40)],
            step=1,
        )
        producer.close_step(1)
        assert producer.flush(60)
        assert producer.counts.dropped == {"too_large": 1}
    values = [events.decode(record.value or b"") for record in read_topic(broker.bootstrap, topic)]
    close = values[-1]
    assert isinstance(close, events.StepClose)
    assert (close.expected_samples, close.dropped) == (40, {"too_large": 1})
    assert sum(len(getattr(value, "samples", [value])) for value in values[:-1]) == 39
    assert noise.encode() in next(tmp_path.glob("*.rejected")).read_bytes()


@pytest.mark.chaos
@pytest.mark.parametrize("fault", ["kill", "pause"])
def test_a_broker_that_dies_or_hangs_in_the_middle_of_a_step_costs_no_sample(
    stoppable_broker: Broker, tmp_path: Path, fault: str
) -> None:
    broker = stoppable_broker
    topic = create_topic(broker.bootstrap)
    with RolloutProducer(broker.bootstrap, topic, spool_directory=tmp_path, spool_after_seconds=2.0) as producer:
        assert train(producer, [0]) < LONGEST_CALL_SECONDS
        assert producer.flush(30)
        producer.emit_step(step_samples(1)[:1000], step=1)
        getattr(broker, fault)()
        assert producer.emit_step(step_samples(1)[1000:], step=1) == 1000
        assert producer.close_step(1)
        assert train(producer, [2, 3]) < LONGEST_CALL_SECONDS
        wait_until(lambda: producer.counts.spooled > 0, "the spool")
        assert train(producer, [4]) < LONGEST_CALL_SECONDS
        broker.unpause() if fault == "pause" else broker.start()
        assert producer.flush(60)
        assert producer.counts.dropped.total() == 0
    assert_complete(results(broker, topic), range(5))
    assert list(tmp_path.glob("*.jsonl")) == []


@pytest.mark.chaos
def test_with_the_broker_down_at_start_the_next_process_sends_what_the_first_could_not(
    stoppable_broker: Broker, tmp_path: Path
) -> None:
    broker = stoppable_broker
    topic = create_topic(broker.bootstrap)
    broker.stop()
    with RolloutProducer(broker.bootstrap, topic, spool_directory=tmp_path, close_seconds=0.5) as producer:
        assert train(producer, range(3)) < LONGEST_CALL_SECONDS
        start = time.perf_counter()
    assert time.perf_counter() - start < 0.5 + 3.0
    assert producer.counts.spooled == 6000
    assert producer.counts.dropped.total() == 0
    broker.start()
    with RolloutProducer(broker.bootstrap, topic, spool_directory=tmp_path, attempt=1) as producer:
        train(producer, [3])
        assert producer.flush(30)
    assert_complete(results(broker, topic), range(4))
    assert list(tmp_path.iterdir()) == []


def start(script: str, broker: Broker, topic: str, directory: Path) -> subprocess.Popen[str]:
    """Starts the script in a process of its own."""
    head = f"""
        import os, sys
        from stream_metrics.producers import RolloutProducer
        def make(**options):
            return RolloutProducer({broker.bootstrap!r}, {topic!r}, spool_directory={str(directory)!r}, **options)
        samples = [{{"rollout_id": n, "reward": n % 2}} for n in range(100)]
    """
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(head) + textwrap.dedent(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(script: str, broker: Broker, topic: str, directory: Path, expected_exit: int = 0) -> None:
    """Runs the script in a process of its own, which must end by itself."""
    with start(script, broker, topic, directory) as process:
        try:
            said, _ = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == expected_exit, said


@pytest.mark.parametrize("end", ["", "sys.exit(0)", "raise SystemExit"])
def test_an_interpreter_that_exits_without_close_has_sent_all(broker: Broker, tmp_path: Path, end: str) -> None:
    topic = create_topic(broker.bootstrap)
    run(f"p = make()\np.emit_step(samples, step=1)\np.close_step(1)\n{end}", broker, topic, tmp_path)
    assert_complete(results(broker, topic), [1], 100)


def test_a_trainer_that_dies_of_an_exception_has_sent_its_samples_and_no_marker(broker: Broker, tmp_path: Path) -> None:
    topic = create_topic(broker.bootstrap)
    script = "with make() as p:\n    p.emit_step(samples, step=1)\n    raise RuntimeError"
    run(script, broker, topic, tmp_path, expected_exit=1)
    kinds = [type(events.decode(record.value or b"")) for record in read_topic(broker.bootstrap, topic)]
    assert kinds == [events.SampleBatch]


FORKS = {
    "os.fork": """
        p = make(producers=3)
        p.emit_step(samples[:20], step=1)
        children = []
        for n in (1, 2):
            child = os.fork()
            if not child:
                p.emit_step(samples[40 * n - 20 : 40 * n + 20], step=1)
                p.close_step(1)
                sys.exit(0)
            children.append(child)
        for child in children:
            assert os.waitpid(child, 0)[1] == 0
        p.close_step(1)
    """,
    "multiprocessing": """
        import multiprocessing
        p = make(producers=3)
        def work(n):
            p.emit_step(samples[40 * n - 20 : 40 * n + 20], step=1)
            p.close_step(1)
        p.emit_step(samples[:20], step=1)
        context = multiprocessing.get_context("fork")
        children = [context.Process(target=work, args=(n,)) for n in (1, 2)]
        for child in children:
            child.start()
        for child in children:
            child.join()
            assert child.exitcode == 0
        p.close_step(1)
    """,
}


@pytest.mark.parametrize("way", FORKS)
def test_forked_children_send_their_own_samples_and_neither_hang_nor_send_the_parents(
    broker: Broker, tmp_path: Path, way: str
) -> None:
    topic = create_topic(broker.bootstrap)
    run(FORKS[way], broker, topic, tmp_path)
    found = results(broker, topic)
    assert_complete(found, [1], 100)
    assert next(iter(found.values())).metrics["rollout/duplicate_samples"] == 0  # type: ignore[attr-defined]


def test_a_child_that_emits_nothing_ends_at_once(broker: Broker, tmp_path: Path) -> None:
    topic = create_topic(broker.bootstrap)
    script = """
        p = make()
        p.emit_step(samples, step=1)
        child = os.fork()
        if not child:
            del p
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        p.close_step(1)
    """
    run(script, broker, topic, tmp_path)
    assert_complete(results(broker, topic), [1], 100)


rollouts_and_rewards = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.floats(-1, 1)), max_size=30)


@hypothesis.given(steps=st.lists(rollouts_and_rewards, min_size=1, max_size=4))
@hypothesis.settings(max_examples=5, deadline=None)
def test_random_steps_give_the_metrics_of_their_samples(
    broker: Broker, steps: list[list[tuple[int, int, float]]]
) -> None:
    topic = create_topic(broker.bootstrap)
    with RolloutProducer(broker.bootstrap, topic, spool_directory="") as producer:
        for number, step in enumerate(steps):
            samples = [
                types.SimpleNamespace(group_index=group, rollout_id=rollout, reward=reward)
                for group, rollout, reward in step
            ]
            _sglang_trainers.publish_rollout(number, types.SimpleNamespace(), samples, producer)
        assert producer.flush(30)
    found = results(broker, topic)
    for number, step in enumerate(steps):
        rollouts: dict[tuple[int, int], list[float]] = {}
        for group, rollout, reward in step:
            rollouts.setdefault((group, rollout), []).append(reward)
        means = [math.fsum(rewards) / len(rewards) for rewards in rollouts.values()]
        metrics = found["rollout", 0, number].metrics  # type: ignore[attr-defined]
        assert metrics["rollout/num_training_samples"] == len(step)
        expected = math.fsum(means) / len(means) if means else 0.0
        assert math.isclose(metrics["rollout/episode_raw_reward"], expected, rel_tol=0, abs_tol=1e-12)


@pytest.mark.parametrize("is_stopped", [False, True])
def test_the_follow_command_sends_verls_files(broker: Broker, tmp_path: Path, is_stopped: bool) -> None:
    topic = create_topic(broker.bootstrap)
    for step in range(3):
        lines = [{"input": f"p{n // 2}", "output": "o", "score": float(n % 2), "step": step} for n in range(10)]
        (tmp_path / f"{step}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    script = f"""
        from stream_metrics.commands import follow
        from stream_metrics.config import Settings
        settings = Settings(bootstrap_servers={broker.bootstrap!r}, input_topic={topic!r})
        options = dict(attempt=1, settle_seconds=0.5, is_once={not is_stopped})
        sys.exit(follow.main(settings, {str(tmp_path)!r}, "verl", "run", **options))
    """
    if is_stopped:
        with start(script, broker, topic, tmp_path) as process:
            try:
                wait_until(lambda: len(results(broker, topic)) == 3, "the results")
                process.terminate()
                assert process.wait(30) == 0
            finally:
                process.kill()
    else:
        run(script, broker, topic, tmp_path)
        run(script, broker, topic, tmp_path)
    assert_complete(results(broker, topic), range(3), 10)
    kinds = [type(events.decode(record.value or b"")) for record in read_topic(broker.bootstrap, topic)]
    assert kinds.count(events.StepClose) == 3

"""Replicas die, stall and wake, lines break, the broker goes and comes: every step comes out once, and right.

Without CHAOS_SECONDS one short round is run; with it, which `make chaos` sets, it goes on for as long, in rounds that
each start with empty topics and end with a full comparison. CHAOS_SEED repeats a round's plan.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from support.brokers import Broker
from support.chaos import SETTINGS, Trainers, Verdict, Weather, judge
from support.oracle import Published, Replayed, assert_exact, published, replayed, settle
from support.proxy import Proxy
from support.sidecar_process import deployment

pytestmark = pytest.mark.chaos

SECONDS = float(os.environ.get("CHAOS_SECONDS") or 0)
SEED = os.environ.get("CHAOS_SEED")
SHORT_SECONDS = 50.0
ROUND_SECONDS = 120.0
MIN_FAULTS = 100


class Report:
    """What happened in all rounds, and what came of it."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.faults: Counter[str] = Counter()
        self.exits: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()
        self.steps = self.events = self.corrections = self.dead_letters = 0
        self.verdict = Verdict()

    def __str__(self) -> str:
        kinds = "\n".join(f"  {count:6,}  {kind}" for kind, count in self.faults.most_common())
        verdict = self.verdict
        return (
            f"chaos: {self.faults.total():,} faults in {time.monotonic() - self.began:.0f} s\n{kinds}\n"
            f"  replicas ended: {', '.join(f'{count:,} {how}' for how, count in self.exits.most_common())}\n"
            f"  {self.events:,} events in the log, among them {self.sent['resent']:,} resent on purpose and "
            f"{self.sent['out of order']:,} out of order\n"
            f"  {self.steps:,} steps, {self.corrections:,} corrected, {self.dead_letters:,} dead letters\n"
            f"  lost {len(verdict.lost)}, doubled {len(verdict.doubled)}, wrong {len(verdict.wrong)}"
        )


def test_whatever_dies_stalls_or_is_cut_off_every_step_is_published_once_and_right(
    stoppable_broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = Report()
    seeds = random.SystemRandom()
    until = time.monotonic() + SECONDS
    try:
        while not report.faults or time.monotonic() < until:
            seed = int(SEED) if SEED and not report.faults else seeds.randrange(10**9)
            _say(f"\nchaos: seed {seed}\n", capsys)
            folder = tmp_path / str(seed)
            folder.mkdir(exist_ok=True)
            _round(stoppable_broker, folder, seed, report)
    finally:
        _say(f"\n{report}\n", capsys)
    assert report.verdict, report.verdict
    assert report.faults.total() >= MIN_FAULTS


def _say(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Says it at once, for who watches, and beside a failure, for who can't watch the workers of a parallel run."""
    with capsys.disabled():
        sys.stdout.write(text)
    sys.stdout.write(text)


def _round(broker: Broker, folder: Path, seed: int, report: Report) -> None:
    rng = random.Random(seed)
    seconds = SHORT_SECONDS if not SECONDS else min(SECONDS, ROUND_SECONDS)
    assignment = rng.choice(["cooperative", "cooperative", "eager"])
    with (
        Proxy(broker.proxied_bootstrap, broker.proxy_target) as proxy,
        deployment(broker.bootstrap, folder, 3, assignment=assignment, **SETTINGS) as deployed,
        Trainers(broker.proxied_bootstrap, deployed.input_topic, rng.randrange(10**9)) as trainers,
    ):
        for partition in range(deployed.partitions):
            trainers.add(partition)
        weather = Weather(broker, proxy, deployed, trainers, rng.randrange(10**9))
        try:
            weather.blow(seconds, MIN_FAULTS)
            weather.clear()
            trainers.finish()
            log = settle(deployed)
            weather.note_offsets()
            weather.calm()
        finally:
            report.faults += weather.faults
            report.exits += weather.exits
            report.sent += trainers.counts
        want, got = replayed(deployed, log), published(deployed)
        verdict = judge(want, got)
        report.verdict.lost += verdict.lost
        report.verdict.doubled += verdict.doubled
        report.verdict.wrong += verdict.wrong
        with log.open("rb") as lines:
            report.events += sum(1 for _ in lines)
        report.steps += len(got.on_time)
        report.corrections += len(got.corrections)
        report.dead_letters += got.dead_letters.total()
        assert verdict, verdict
        assert_exact(deployed, log)  # and in order, and as the plain model says


def _line(step: int, reward: float = 1.0) -> bytes:
    return (
        f'{{"run_id":"r","scope":"rollout","attempt":0,"step":{step},"log":{{"partition":0}},"reward":{reward}}}'
    ).encode()


WANT = Replayed(
    on_time={0: [_line(0), _line(1)]},
    corrections={(0, "r", "rollout", 0, 0): b"c"},
    dead_letters=Counter({(0, 5, "undecodable"): 1}),
)


def _published(on_time: list[bytes], corrections: dict[int, bytes], letters: dict[int, int]) -> Published:
    return Published(
        on_time=[(0, line) for line in on_time],
        corrections={(0, "r", "rollout", 0, step): value for step, value in corrections.items()},
        dead_letters=Counter({(0, offset, "undecodable"): count for offset, count in letters.items()}),
    )


@pytest.mark.parametrize(
    ("got", "lost", "doubled", "wrong"),
    [
        pytest.param(_published([_line(0), _line(1)], {0: b"c"}, {5: 1}), 0, 0, 0, id="as the log says"),
        pytest.param(_published([_line(0)], {0: b"c"}, {5: 1}), 1, 0, 0, id="a step is missing"),
        pytest.param(_published([_line(0), _line(1), _line(1)], {0: b"c"}, {5: 1}), 0, 1, 0, id="a step comes twice"),
        pytest.param(_published([_line(0), _line(1, 0.5)], {0: b"c"}, {5: 1}), 0, 0, 1, id="a number differs"),
        pytest.param(_published([_line(0), _line(1), _line(1, 0.5)], {0: b"c"}, {5: 1}), 0, 1, 0, id="twice, not same"),
        pytest.param(_published([_line(0), _line(1), _line(2)], {0: b"c"}, {5: 1}), 0, 0, 1, id="a step too many"),
        pytest.param(_published([_line(0), _line(1)], {}, {5: 1}), 1, 0, 0, id="no correction"),
        pytest.param(_published([_line(0), _line(1)], {0: b"d"}, {5: 1}), 0, 0, 1, id="another correction"),
        pytest.param(_published([_line(0), _line(1)], {0: b"c", 1: b"c"}, {5: 1}), 0, 0, 1, id="a correction too many"),
        pytest.param(_published([_line(0), _line(1)], {0: b"c"}, {}), 1, 0, 0, id="no dead letter"),
        pytest.param(_published([_line(0), _line(1)], {0: b"c"}, {5: 2}), 0, 1, 0, id="a dead letter twice"),
        pytest.param(_published([_line(0), _line(1)], {0: b"c"}, {5: 1, 6: 1}), 0, 0, 1, id="a dead letter too many"),
    ],
)
def test_the_comparison_tells_lost_doubled_and_wrong_apart(got: Published, lost: int, doubled: int, wrong: int) -> None:
    verdict = judge(WANT, got)
    assert (len(verdict.lost), len(verdict.doubled), len(verdict.wrong)) == (lost, doubled, wrong)

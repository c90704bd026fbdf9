"""What the probes answer, by a clock that a test turns."""

from __future__ import annotations

import json

from stream_metrics.sidecar.health import FLOOD_SECONDS, SLOW_COMMIT_SECONDS, STUCK_SECONDS, Health


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def _health(limit: float = 0.5) -> tuple[Health, Clock]:
    clock = Clock()
    return Health(limit, clock), clock


def test_a_loop_that_turns_is_alive_and_one_that_stands_still_is_not() -> None:
    health, clock = _health()
    clock.now += STUCK_SECONDS
    assert health.alive()[0]
    clock.now += 1
    is_alive, body = health.alive()
    assert not is_alive and "hasn't turned" in json.loads(body)["reason"]
    health.turn()
    assert health.alive()[0]


def test_a_new_replica_is_not_ready_and_says_why() -> None:
    health, _ = _health()
    assert health.ready() == (False, b'{"status":"failing","reason":"starting"}\n')
    health.not_ready = ""
    assert health.ready() == (True, b'{"status":"ok"}\n')


def _ready_health() -> tuple[Health, Clock]:
    health, clock = _health()
    health.not_ready = ""
    return health, clock


def test_a_broker_that_hung_up_is_told_at_once_and_until_one_answers() -> None:
    health, _ = _ready_health()
    health.begin_commit()
    health.is_broker_away = True
    assert health.ready() == (False, b'{"status":"failing","reason":"the broker is away"}\n')
    health.end_commit()
    assert not health.ready()[0]
    health.is_broker_away = False
    assert health.ready()[0]


def test_a_broker_that_hangs_is_told_once_a_transaction_waits_for_long() -> None:
    health, clock = _ready_health()
    health.begin_commit()
    clock.now += SLOW_COMMIT_SECONDS
    assert health.ready()[0]
    clock.now += 1
    is_ready, body = health.ready()
    assert not is_ready and "waiting for the broker for 6 s" in json.loads(body)["reason"]
    assert health.alive()[0]
    health.end_commit()
    assert health.ready()[0]


def test_a_flood_of_dead_letters_fails_the_probe_until_it_is_a_minute_old() -> None:
    health, clock = _health(0.5)
    health.count(100, 51)
    is_alive, body = health.alive()
    assert not is_alive and "51%" in json.loads(body)["reason"]
    clock.now += FLOOD_SECONDS + 1
    health.turn()
    assert health.alive()[0]


def test_a_share_at_the_limit_is_no_flood() -> None:
    health, _ = _health(0.5)
    health.count(100, 50)
    assert health.flood() is None


def test_good_records_dilute_a_flood() -> None:
    health, clock = _health(0.5)
    health.count(100, 100)
    assert health.flood() == 1.0
    clock.now += 1
    health.count(900, 0)
    assert health.flood() is None


def test_a_few_dead_letters_are_no_flood() -> None:
    health, _ = _health(0.1)
    health.count(19, 19)
    assert health.flood() is None
    health.count(1, 1)
    assert health.flood() == 1.0


def test_a_limit_of_one_never_fails() -> None:
    health, _ = _health(1.0)
    health.count(10_000, 10_000)
    assert health.alive()[0]


def test_what_is_kept_of_the_past_is_bounded() -> None:
    health, clock = _health()
    for _ in range(10_000):
        clock.now += 0.1
        health.count(1, 1)
    assert len(health._seconds) <= FLOOD_SECONDS + 1
    assert health.flood() == 1.0

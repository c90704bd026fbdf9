"""A partition that can't be read on: said once, and once that it goes on."""

from __future__ import annotations

from stream_metrics.sidecar.standstill import STAND_SECONDS, Standstill


def test_a_log_that_goes_on_while_nothing_can_be_read_is_said_once_and_so_is_its_end() -> None:
    one = Standstill()
    assert [one.look(5, 2, 100.0 + second) for second in range(int(STAND_SECONDS))] == [None] * int(STAND_SECONDS)
    assert one.look(5, 3, 100.0 + STAND_SECONDS) is True
    assert one.look(5, 9, 200.0) is None
    assert one.look(8, 1, 201.0) is False
    assert one.look(9, 0, 202.0) is None


def test_a_partition_that_is_read_is_no_standstill_however_far_behind_it_is() -> None:
    one = Standstill()
    assert [one.look(offset, 1_000_000, 100.0 * offset) for offset in range(5)] == [None] * 5


def test_a_log_without_more_is_no_standstill() -> None:
    one = Standstill()
    assert [one.look(5, 0, 100.0 * look) for look in range(5)] == [None] * 5

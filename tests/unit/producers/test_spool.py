from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from stream_metrics.producers.spool import Spool, read_lines


def spool(directory: Path, **options: Any) -> Spool:
    return Spool(directory, **{"topic": "t", "run_id": "r", "max_bytes": 10_000, "segment_bytes": 50, **options})


def drained(one: Spool) -> list[bytes]:
    found: list[bytes] = []
    while (segment := one.oldest()) is not None:
        found.extend(read_lines(segment.path))
        one.done(segment)
    return found


LINES = [b'{"n":%d,"padding":"0123456789"}' % n for n in range(10)]


def test_lines_come_back_in_order_and_leave_nothing_behind(tmp_path: Path) -> None:
    one = spool(tmp_path)
    assert one.append(LINES) == 10
    assert drained(one) == LINES
    assert one.is_empty
    one.close()
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_on_disk_before_there_is_something_to_keep(tmp_path: Path) -> None:
    one = spool(tmp_path / "later")
    assert one.adopt() == 0
    one.close()
    assert not (tmp_path / "later").exists()


def test_lines_appended_while_an_older_segment_is_sent_come_later(tmp_path: Path) -> None:
    one = spool(tmp_path)
    one.append(LINES[:3])
    segment = one.oldest()
    assert segment is not None
    one.append(LINES[3:5])
    assert one.oldest() is segment
    assert drained(one) == LINES[:5]


def test_a_full_spool_says_how_much_it_took(tmp_path: Path) -> None:
    one = spool(tmp_path, max_bytes=100)
    assert one.append(LINES) == 3
    assert "full" in str(one.trouble)
    assert drained(one) == LINES[:3]
    assert one.append(LINES[3:4]) == 1


def test_a_disk_that_fills_up_in_the_middle_of_a_line_is_said_and_leaves_no_half_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, write, room = spool(tmp_path), os.write, 2 * len(LINES[0]) + 10

    def fills_up(descriptor: int, data: bytes) -> int:
        nonlocal room
        if not room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = write(descriptor, data[:room])
        room -= written
        return written

    monkeypatch.setattr(os, "write", fills_up)
    assert one.append(LINES) == 2
    assert "No space left" in str(one.trouble)
    monkeypatch.undo()  # somebody has made room
    assert one.append(LINES[2:]) == 8
    assert one.trouble is None
    assert drained(one) == LINES


def test_a_later_process_of_the_run_takes_over_what_was_left(tmp_path: Path) -> None:
    first = spool(tmp_path)
    first.append(LINES[:4])
    first.close()
    second = spool(tmp_path)
    assert second.adopt() > 0
    second.append(LINES[4:6])
    assert drained(second) == LINES[:6]
    assert list(tmp_path.iterdir()) == []


def test_files_of_a_living_process_another_run_or_another_topic_are_left_alone(tmp_path: Path) -> None:
    living = spool(tmp_path)
    living.append(LINES[:2])
    for other in (spool(tmp_path), spool(tmp_path, run_id="other"), spool(tmp_path, topic="other")):
        assert other.adopt() == 0
    living.close()
    assert spool(tmp_path, run_id="other").adopt() == 0
    assert spool(tmp_path).adopt() > 0


def test_run_ids_that_differ_only_in_odd_signs_keep_apart(tmp_path: Path) -> None:
    one = spool(tmp_path, run_id="a/b")
    one.append(LINES[:1])
    one.close()
    assert spool(tmp_path, run_id="a:b").adopt() == 0
    assert spool(tmp_path, run_id="a/b").adopt() > 0


def test_a_directory_that_cannot_be_made_is_said_and_not_raised(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    one = spool(tmp_path / "file" / "spool")
    assert one.append(LINES) == 0
    assert "can't be written" in str(one.trouble)
    assert not one.reject(b"{}")
    assert one.adopt() == 0
    one.close()


def test_a_rejected_line_is_kept_apart_and_not_sent_again(tmp_path: Path) -> None:
    one = spool(tmp_path)
    assert one.reject(b'{"too":"large"}')
    one.close()
    assert spool(tmp_path).adopt() == 0
    assert [path.read_bytes() for path in tmp_path.glob("*.rejected")] == [b'{"too":"large"}\n']

"""The note beside a committed offset: small, exact, and never read as something that it isn't."""

from __future__ import annotations

import json

import msgspec
import pytest

from stream_metrics.core.fold import Fold
from stream_metrics.core.replay_note import (
    FOLD_VERSION,
    MAX_FLOOR_BYTES,
    MAX_NOTE_BYTES,
    NOTE_VERSION,
    Floor,
    NoteError,
    ReplayNote,
    decode_note,
    floor_bytes,
    name_hash,
)
from stream_metrics.core.settings import FoldSettings
from stream_metrics.events import MAX_INTEGER
from stream_metrics.testing import MemoryLog, close, sample

NOTE = ReplayNote(
    replay_from=17,
    next_check=25_000,
    frozen_below=3,
    settings="0123456789abcdef",
    windows="fedcba9876543210",
    floors=(Floor(name_hash("a", "rollout"), 2, 40, (10**12,)), Floor(name_hash("b", "eval/x"), whole_from=-1)),
    topic_id="UxrUEg3NT-KN7Fue5C9iyw",
    lost_to=11,
)


def _refusal(metadata: str | None) -> str:
    with pytest.raises(NoteError) as caught:
        decode_note(metadata)
    return str(caught.value)


def _changed(**fields: object) -> str:
    return json.dumps({**json.loads(NOTE.encode()), **fields})


def test_a_note_is_read_back_as_it_was_written() -> None:
    assert decode_note(NOTE.encode()) == NOTE
    assert NOTE.encode().isascii()


def test_a_note_with_as_many_floors_as_may_be_fits_beside_an_offset() -> None:
    floors: list[Floor] = []
    while True:
        number = len(floors)
        more = Floor(2**64 - 1 - number, MAX_INTEGER - number, MAX_INTEGER - number, (MAX_INTEGER,) * 4, MAX_INTEGER)
        if sum(map(floor_bytes, [*floors, more])) > MAX_FLOOR_BYTES:
            break
        floors.append(more)
    numbers = [name for name, kind in ReplayNote.__annotations__.items() if kind == "int" and name != "fold"]
    note = msgspec.structs.replace(NOTE, floors=tuple(floors), **dict.fromkeys(numbers, MAX_INTEGER))
    assert len(note.encode().encode()) <= MAX_NOTE_BYTES
    assert decode_note(note.encode()) == note


def test_the_default_number_of_runs_fits_in_a_note() -> None:
    log, settings = MemoryLog(), FoldSettings()
    for step in (0, 1, 2, 3):
        for run in range(settings.max_runs):
            log.append(close(1_000_000 + step, run_id=f"run-{run}", attempt=5))
    fold = Fold(settings, "t", 0)
    fold.feed(log.records)
    note = fold.note(log.next_offset)
    assert len(note.floors) == settings.max_runs
    assert len(note.encode()) <= MAX_NOTE_BYTES


def test_the_note_of_a_real_fold_is_read_back() -> None:
    log = MemoryLog()
    for step in range(5):
        log.append(sample(step, 1.0, run_id="r"))
        log.append(close(step, run_id="r"))
    fold = Fold(FoldSettings(), "t", 0)
    fold.feed(log.records)
    note = decode_note(fold.note(log.next_offset).encode())
    assert note.floors == (Floor(name_hash("r", "rollout"), 0, 2),)
    assert note.replay_from == 6  # steps 3 and 4 are remembered


@pytest.mark.parametrize("metadata", [None, ""])
def test_an_offset_without_metadata_is_somebody_elses(metadata: str | None) -> None:
    assert "without a replay note" in _refusal(metadata)


@pytest.mark.parametrize(
    "metadata",
    [
        "committed by hand",
        "0",
        "null",
        "[]",
        "{}",
        '{"version":1}',
        '{"stream_metrics":"1"}',
        '{"stream_metrics":null}',
        "\x00",
        "AQAAAYx2x9Y=",  # Kafka Streams' own
        "[" * 4_000,
        '{"stream_metrics":' * 200,
    ],
)
def test_metadata_of_something_else_is_refused_and_shown(metadata: str) -> None:
    message = _refusal(metadata)
    assert "no replay note of stream_metrics" in message
    assert len(message) < 600


def test_every_cut_of_a_note_is_refused() -> None:
    whole = NOTE.encode()
    for end in range(len(whole)):
        assert _refusal(whole[:end])


@pytest.mark.parametrize(
    "fields",
    [
        {"replay_from": "17"},
        {"replay_from": None},
        {"replay_from": 1.5},
        {"settings": 1},
        {"floors": "!" * 7 + " "},
        {"floors": "x"},
        {"floors": "é"},
        {"floors": []},
        {"fold": "1"},
    ],
)
def test_a_damaged_note_is_refused_as_damaged(fields: dict[str, object]) -> None:
    assert "damaged" in _refusal(_changed(**fields))


def test_a_note_of_a_newer_version_says_what_to_do_whatever_else_is_in_it() -> None:
    message = _refusal(json.dumps({"stream_metrics": NOTE_VERSION + 1, "all": "else differs"}))
    assert f"version {NOTE_VERSION + 1}" in message
    assert "run the newer program" in message


def test_a_note_of_a_newer_fold_says_what_to_do() -> None:
    message = _refusal(_changed(fold=FOLD_VERSION + 1))
    assert f"fold {FOLD_VERSION + 1}" in message
    assert "run the newer program" in message


def test_a_field_that_a_later_version_adds_is_skipped() -> None:
    assert decode_note(_changed(more=1)) == NOTE


def test_a_note_from_before_topics_had_ids_is_read() -> None:
    fields = json.loads(NOTE.encode())
    del fields["topic_id"]
    assert decode_note(json.dumps(fields)) == msgspec.structs.replace(NOTE, topic_id="")


def test_run_and_scope_are_told_apart_in_a_name() -> None:
    names = {name_hash("a", "b"), name_hash("ab", ""), name_hash("", "ab"), name_hash("b", "a"), name_hash('a","b', "")}
    assert len(names) == 5
    assert all(0 <= name < 2**64 for name in names)

"""The note that travels as the metadata of each committed offset: where and how to rebuild the windows from the log.

A note is one line of JSON, below `MAX_NOTE_BYTES`. Its floors are MessagePack in base 85, since there may be many.
A reader refuses what is newer than itself or isn't a note; it never guesses.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Final

import msgspec

MAX_NOTE_BYTES: Final = 3_900
"""Kafka's default `offset.metadata.max.bytes` is 4,096, and an offset commit of exactly that size is refused."""

MAX_FLOOR_BYTES: Final = 2_800
"""What the encoded floors may take before base 85 adds a quarter to them."""

NOTE_VERSION: Final = 1
FOLD_VERSION: Final = 1
"""Grows whenever the same log and settings would give another result or other windows."""


class NoteError(ValueError):
    """The metadata of a committed offset can't be used; the message says why and what to do."""


class Floor(msgspec.Struct, array_like=True, omit_defaults=True, frozen=True):
    """What is remembered of one run and scope.

    Attributes:
        name: 64-bit hash of run and scope.
        attempt: The attempt that is alive.
        step: Newest step of it forgotten, -1 for none.
        beside: Steps above it that were forgotten alone.
        whole_from: Windows opened below this offset may have begun in what was lost unread; -1 while any may have.
    """

    name: int
    attempt: int = 0
    step: int = -1
    beside: tuple[int, ...] = ()
    whole_from: int = 0


class ReplayNote(msgspec.Struct, kw_only=True, frozen=True):
    """Where the log must be read again from, and what must come of it.

    Attributes:
        replay_from: Smallest first offset of any window in memory.
        next_check: Offset from which the fold looks for runs to forget.
        frozen_below: Windows closed below it take no more corrections.
        settings: Digest of the settings that change results.
        windows: Digest of the windows in memory.
        floors: By the time their run was last seen, oldest first.
        open_from: Smallest first offset of any window that is not closed; the committed offset where there is none.
        num_open: How many windows are not closed; -1 where the note doesn't say.
        fold: Version of the fold that wrote it.
        topic_id: Id of the topic whose offsets these are; empty where the note doesn't say.
        lost_to: Offset before which something was lost unread, so that a run first seen now may have begun in it; 0 for
            none.
    """

    replay_from: int
    next_check: int
    frozen_below: int
    settings: str
    windows: str
    floors: tuple[Floor, ...]
    open_from: int = 0
    num_open: int = -1
    fold: int = FOLD_VERSION
    topic_id: str = ""
    lost_to: int = 0

    def encode(self) -> str:
        """Returns the note as offset metadata, ASCII only."""
        wire = _Wire(
            stream_metrics=NOTE_VERSION,
            fold=self.fold,
            replay_from=self.replay_from,
            next_check=self.next_check,
            frozen_below=self.frozen_below,
            settings=self.settings,
            windows=self.windows,
            open_from=self.open_from,
            num_open=self.num_open,
            topic_id=self.topic_id,
            lost_to=self.lost_to,
            floors=base64.b85encode(msgspec.msgpack.encode(self.floors)).decode("ascii"),
        )
        return msgspec.json.encode(wire).decode("ascii")


class _Wire(msgspec.Struct, kw_only=True):
    stream_metrics: int
    fold: int
    replay_from: int
    next_check: int
    frozen_below: int
    settings: str
    windows: str
    floors: str
    open_from: int = 0
    num_open: int = -1
    topic_id: str = ""
    lost_to: int = 0


class _Version(msgspec.Struct):
    stream_metrics: int


def decode_note(metadata: str | None) -> ReplayNote:
    """Returns the note in a committed offset's metadata.

    Raises:
        NoteError: There is none, it is damaged, or a newer version wrote it.
    """
    if not metadata:
        raise NoteError("the offset was committed without a replay note, so by something else than stream_metrics")
    try:
        version = msgspec.json.decode(metadata, type=_Version).stream_metrics
    except (msgspec.MsgspecError, RecursionError):
        raise NoteError(f"the offset's metadata is no replay note of stream_metrics: {metadata[:80]!r}") from None
    if version > NOTE_VERSION:
        raise NoteError(
            f"the replay note has version {version}, this program reads up to {NOTE_VERSION}: "
            "run the newer program that wrote it"
        )
    try:
        wire = msgspec.json.decode(metadata, type=_Wire)
        floors = msgspec.msgpack.decode(base64.b85decode(wire.floors), type=tuple[Floor, ...])
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise NoteError(f"the replay note is damaged ({error}): {metadata[:80]!r}") from None
    if wire.fold > FOLD_VERSION:
        raise NoteError(
            f"the replay note was written by fold {wire.fold}, this program has fold {FOLD_VERSION}: "
            "run the newer program that wrote it"
        )
    return ReplayNote(
        fold=wire.fold,
        replay_from=wire.replay_from,
        next_check=wire.next_check,
        frozen_below=wire.frozen_below,
        settings=wire.settings,
        windows=wire.windows,
        open_from=wire.open_from,
        num_open=wire.num_open,
        topic_id=wire.topic_id,
        lost_to=wire.lost_to,
        floors=floors,
    )


def floor_bytes(floor: Floor) -> int:
    """Returns how much a floor takes in a note, before base 85."""
    return len(msgspec.msgpack.encode(floor))


def name_hash(run_id: str, scope: str) -> int:
    """Returns the 64-bit hash that stands for a run and scope in a note."""
    digest = hashlib.blake2b(msgspec.json.encode([run_id, scope]), digest_size=8).digest()
    return int.from_bytes(digest, "big")

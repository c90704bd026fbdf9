"""What the sidecar asks of its process: how memory is kept, when garbage is looked for. Results don't depend on it."""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress
from typing import Final

GC_THRESHOLD: Final = 100_000
"""New objects from which the collector looks for garbage in cycles; a batch of records has thousands for a moment."""

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_KEPT_BYTES: Final = 16 * 2**20
_MAPPED_BYTES: Final = 2**20


def tune() -> None:
    """The collector leaves alone what is there now and looks seldom; the C library keeps some memory it may use again.

    The arrays of a closing step would else be given back to the system and be paged in again for the next metric: a
    third of the time it takes to work out the metrics of 20,000 samples.
    """
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)
    with suppress(OSError, AttributeError):  # a C library without it
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_MMAP_THRESHOLD, _MAPPED_BYTES)

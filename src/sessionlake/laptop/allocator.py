"""How much memory glibc keeps for threads that have freed it: without a limit, that grows for days.

Each thread that allocates while others do is given an arena of its own, up to eight a core, and an arena gives back
only what is free at its end. delta-rs starts a thread for each file that it reads, Spark's RocksDB has some, too: so
what a process that lasts holds is their number times the most that any of these threads ever needed.
"""

from __future__ import annotations

import ctypes
import os
import sys

_M_ARENA_MAX = -8  # as in <malloc.h>
_VARIABLE = "MALLOC_ARENA_MAX"


def limit_arenas(most: int) -> None:
    """Has this process, and those that it starts from now on, share so many arenas; arenas that are there stay.

    A limit that was given from outside (`MALLOC_ARENA_MAX`) stands. Other systems' allocators have no arenas.
    """
    if _VARIABLE in os.environ or not sys.platform.startswith("linux"):
        return
    os.environ[_VARIABLE] = str(most)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, most)

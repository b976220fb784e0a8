"""How much memory allocators keep for threads that have freed it: without a limit, that grows for days.

Each thread that allocates while others do is given an arena of its own, up to eight a core of glibc's and four a core
of jemalloc's, which delta-rs brings. delta-rs starts a thread for each file that it reads, Spark's RocksDB has some,
too: so what a process that lasts holds is the number of arenas times the most that any of these threads ever needed.
"""

from __future__ import annotations

import ctypes
import os
import sys

_M_ARENA_MAX = -8  # as in <malloc.h>
_VARIABLE = "MALLOC_ARENA_MAX"
_OF_DELTA_RS = "_RJEM_MALLOC_CONF"
# What a thread has freed goes back at once if it is large, else within a second of it.
_GIVING_BACK = "tcache_max:4096,dirty_decay_ms:1000,muzzy_decay_ms:0"


def limit_arenas(most: int) -> None:
    """Has this process, and those that it starts from now on, share so many arenas; arenas that are there stay.

    A limit that was given from outside (`MALLOC_ARENA_MAX`, `_RJEM_MALLOC_CONF`) stands. delta-rs reads its own when it
    is loaded. Other systems' allocators than glibc have no arenas.
    """
    os.environ.setdefault(_OF_DELTA_RS, f"narenas:{most},{_GIVING_BACK}")
    if _VARIABLE in os.environ or not sys.platform.startswith("linux"):
        return
    os.environ[_VARIABLE] = str(most)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, most)

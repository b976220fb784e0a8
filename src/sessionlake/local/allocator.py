"""Limits on the memory that allocators keep after it is freed. Without them a long-running process grows for days.

An arena is a memory pool of the C allocator. A thread that allocates while others do gets its own arena. glibc allows
eight arenas per core, and jemalloc, which delta-rs uses, allows four. delta-rs starts a thread for each file that it
reads, and RocksDB in Spark has threads too. A process may keep as much memory as the number of arenas times the largest
amount that one of these threads ever needed.
"""

from __future__ import annotations

import ctypes
import os
import sys

_M_ARENA_MAX = -8  # as in <malloc.h>
_VARIABLE = "MALLOC_ARENA_MAX"
_JEMALLOC_VARIABLE = "_RJEM_MALLOC_CONF"
# Large freed blocks return to the system at once, others after a second.
_JEMALLOC_DECAY = "tcache_max:4096,dirty_decay_ms:1000,muzzy_decay_ms:0"


def limit_malloc_arenas(max_arenas: int) -> None:
    """Limits the number of memory pools (arenas) of this process and of those that it starts. Existing arenas stay.

    A limit already set in the environment (`MALLOC_ARENA_MAX`, `_RJEM_MALLOC_CONF`) is kept. delta-rs reads its limit
    when it is loaded. Only glibc has arenas; with other C libraries only the limit for delta-rs is set.
    """
    os.environ.setdefault(_JEMALLOC_VARIABLE, f"narenas:{max_arenas},{_JEMALLOC_DECAY}")
    if _VARIABLE in os.environ or not sys.platform.startswith("linux"):
        return
    os.environ[_VARIABLE] = str(max_arenas)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, max_arenas)

"""How many arenas threads are given, as the allocators themselves say in a process of its own."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators have no arenas")
COUNTED = """
import ctypes, sys, threading
from sessionlake.local.allocator import limit_malloc_arenas

if sys.argv[1:]:
    limit_malloc_arenas(int(sys.argv[1]))
libc, together = ctypes.CDLL(None), threading.Barrier(16)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]

def allocate():
    together.wait()
    held = [libc.malloc(100_000) for _ in range(100)]
    together.wait()
    for one in held:
        libc.free(one)

threads = [threading.Thread(target=allocate) for _ in range(16)]
for one in threads:
    one.start()
for one in threads:
    one.join()
libc.fopen.restype = ctypes.c_void_p
libc.malloc_info(0, ctypes.c_void_p(libc.fopen(b"/dev/stdout", b"w")))
libc.fflush(None)
"""


def arenas(*most: str, **given: str) -> int:
    others = {name: value for name, value in os.environ.items() if name != "MALLOC_ARENA_MAX"}
    command = [sys.executable, "-c", COUNTED, *most]
    done = subprocess.run(command, env=others | given, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.count("<heap nr=")


def test_sixteen_threads_share_as_many_as_are_allowed_and_take_more_where_nobody_says() -> None:
    assert arenas("2") == 2
    assert arenas() > 2


def test_a_limit_that_was_given_from_outside_stands() -> None:
    assert arenas("2", MALLOC_ARENA_MAX="3") == 3


LOADED = """
import os, sys
from sessionlake.local.allocator import limit_malloc_arenas

limit_malloc_arenas(int(sys.argv[1]))
os.environ["_RJEM_MALLOC_CONF"] += ",stats_print:true"
import deltalake
"""


def test_delta_rs_has_as_many_and_what_was_given_from_outside_stands() -> None:
    def told(**given: str) -> list[str]:
        others = {name: value for name, value in os.environ.items() if name != "_RJEM_MALLOC_CONF"}
        command = [sys.executable, "-c", LOADED, "3"]
        done = subprocess.run(command, env=others | given, stderr=subprocess.PIPE, text=True, check=True)
        return [line.split()[1] for line in done.stderr.splitlines() if line.strip().startswith("opt.narenas:")]

    assert told() == ["3"]
    assert told(_RJEM_MALLOC_CONF="narenas:5") == ["5"]

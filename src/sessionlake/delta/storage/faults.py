"""Named places where a test can make the process die, as a power cut would, or stand still.

`SESSIONLAKE_FAULT=name` or `name#3` (the third passing) kills the process with SIGKILL there; `stop@name` stops it,
until it is sent SIGCONT. Unset, which is always outside such tests, a fault point costs one dictionary look-up.
"""

from __future__ import annotations

import os
import signal
from collections import Counter

VARIABLE = "SESSIONLAKE_FAULT"
_STOP = "stop@"
_passed: Counter[str] = Counter()


def fault_point(name: str) -> None:
    """Dies or stops here if the environment asks for it."""
    wanted = os.environ.get(VARIABLE)
    if wanted is None:
        return
    _passed[name] += 1
    place, _, nth = wanted.removeprefix(_STOP).partition("#")
    if place == name and _passed[name] == int(nth or 1):
        os.kill(os.getpid(), signal.SIGSTOP if wanted.startswith(_STOP) else signal.SIGKILL)

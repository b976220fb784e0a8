"""Named places where a test can make the process die, as a power cut would.

`SESSIONLAKE_FAULT=name` or `name#3` (the third passing) kills the process with SIGKILL there. Unset, which
is always outside crash tests, a fault point costs one dictionary look-up.
"""

from __future__ import annotations

import os
import signal
from collections import Counter

VARIABLE = "SESSIONLAKE_FAULT"
_passed: Counter[str] = Counter()


def fault_point(name: str) -> None:
    """Dies here if the environment asks for it."""
    wanted = os.environ.get(VARIABLE)
    if wanted is None:
        return
    _passed[name] += 1
    place, _, nth = wanted.partition("#")
    if place == name and _passed[name] == int(nth or 1):
        os.kill(os.getpid(), signal.SIGKILL)

"""Named points in the code at which a test can kill or suspend the process.

`SESSIONLAKE_FAULT=name` kills the process with SIGKILL at that point; `name#3` does so the third time it is reached.
`stop@name` suspends the process until it gets SIGCONT. Without the variable, a fault point costs one dictionary
look-up.
"""

from __future__ import annotations

import os
import signal
from collections import Counter

VARIABLE = "SESSIONLAKE_FAULT"
_STOP = "stop@"
_passed: Counter[str] = Counter()


def inject_fault_if_requested(name: str) -> None:
    """Marks a point in the code at which tests of crashes can kill or suspend the process.

    With SESSIONLAKE_FAULT=NAME in the environment, the point of this name kills it; with `stop@NAME`, suspends it. With
    `NAME#3`, only the third call does.
    """
    wanted = os.environ.get(VARIABLE)
    if wanted is None:
        return
    _passed[name] += 1
    place, _, nth = wanted.removeprefix(_STOP).partition("#")
    if place == name and _passed[name] == int(nth or 1):
        os.kill(os.getpid(), signal.SIGSTOP if wanted.startswith(_STOP) else signal.SIGKILL)

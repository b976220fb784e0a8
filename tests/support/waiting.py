"""Waiting for what happens beside a test."""

from __future__ import annotations

import time
from collections.abc import Callable

_LOOK_SECONDS = 0.1


def eventually(
    condition: Callable[[], object],
    seconds: float,
    *,
    meanwhile: Callable[[], object] = lambda: None,
    told: Callable[[], object] = lambda: "not reached in time",
) -> None:
    """Returns when it holds.

    Args:
        meanwhile: called between looks; it raises what has ended whoever is waited for.
        told: what is said when it does not come to hold.
    """
    end = time.monotonic() + seconds
    while not condition():
        meanwhile()
        assert time.monotonic() < end, told()
        time.sleep(_LOOK_SECONDS)

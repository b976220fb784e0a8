"""Waits for asynchronous effects in tests."""

from __future__ import annotations

import time
from collections.abc import Callable

_LOOK_SECONDS = 0.1


def eventually(
    condition: Callable[[], object],
    seconds: float,
    *,
    meanwhile: Callable[[], object] = lambda: None,
    failure: Callable[[], object] = lambda: "not reached in time",
) -> None:
    """Waits until the condition is true.

    Args:
        condition: The condition.
        seconds: Maximum time to wait.
        meanwhile: Called between checks. It may raise an error that ends the wait.
        failure: Returns the message of the failure if the condition stays false.
    """
    end = time.monotonic() + seconds
    while not condition():
        meanwhile()
        assert time.monotonic() < end, failure()
        time.sleep(_LOOK_SECONDS)

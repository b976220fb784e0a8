"""Stops a decoder class that does not come to an end with a message."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

MAX_CPU_SECONDS = 10.0
"""Most CPU time that a decoder class may use for a message or row. It is no time of a clock, since a busy machine must
not refuse messages."""
_CHECKS = 10
"""How often the progress is looked at in `MAX_CPU_SECONDS`."""


class DecoderTimeLimitError(BaseException):
    """A decoder class has used too much CPU time.

    It is no `Exception`, because a decoder class may catch all of these.
    """

    def __str__(self) -> str:
        return f"the decoder used more than {MAX_CPU_SECONDS:g} s of CPU time"


@contextmanager
def limit_cpu_time(count_finished: Callable[[], int] = lambda: 0) -> Iterator[None]:
    """Stops the code in this block if it uses more than 10 s of CPU time without progress.

    Only the main thread can be stopped. Spark's Python workers and the commands run decoder classes in it. In another
    thread there is no limit.

    Args:
        count_finished: Returns how many messages are finished. The time starts again when this number changes.

    Raises:
        TimeLimitError: The limit is exceeded.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    finished, checks = count_finished(), 0

    def raise_if_without_progress(signum: int, frame: FrameType | None) -> None:
        nonlocal finished, checks
        del signum, frame
        found = count_finished()
        checks = checks + 1 if found == finished else 0
        finished = found
        if checks >= _CHECKS:
            raise DecoderTimeLimitError

    before = signal.signal(signal.SIGVTALRM, raise_if_without_progress)
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, MAX_CPU_SECONDS / _CHECKS, MAX_CPU_SECONDS / _CHECKS)
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)

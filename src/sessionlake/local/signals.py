"""A flag for Ctrl-C and SIGTERM that work checks between its steps, so that no step is interrupted by an exception."""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# The pipe into which Python writes the number of each signal, whichever handler the signal has.
_recorded: list[int] = []


@contextmanager
def record_interrupts_during_block() -> Iterator[None]:
    """Records each Ctrl-C during the block for `was_interrupt_recorded`. Does nothing outside the main thread."""
    if threading.current_thread() is not threading.main_thread() or _recorded:
        yield
        return
    readable, writable = os.pipe()
    for end in (readable, writable):
        os.set_blocking(end, False)
    before = signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    _recorded.append(readable)
    try:
        yield
    finally:
        _recorded.clear()
        signal.set_wakeup_fd(before)
        os.close(readable)
        os.close(writable)


def was_interrupt_recorded() -> bool:
    """Returns True if Ctrl-C was recorded since the last call, and no `StopFlag` has handled it.

    Ctrl-C is recorded during a block of `record_interrupts_during_block`.
    """
    try:
        return any(signal.SIGINT in os.read(readable, select.PIPE_BUF) for readable in _recorded)
    except BlockingIOError:  # nothing was recorded
        return False


class StopFlag(threading.Event):
    """An event that a SIGINT or SIGTERM sets during its `with` block, so that work can stop between two steps.

    Python handles signals in the main thread only. In other threads, callers set the event themselves.

    Attributes:
        signal: Number of the first signal received; 0 before.
    """

    def __init__(self) -> None:
        super().__init__()
        self.signal = 0
        self._raising = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self.install_signal_handlers()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def install_signal_handlers(self) -> None:
        """Installs the signal handlers. Call it again after Spark has started, because Spark replaces them."""
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                before = signal.signal(number, self._handle_signal)
                self._before.setdefault(number, before)

    @contextmanager
    def raise_interrupt_on_signal(self) -> Iterator[None]:
        """Makes a signal also raise `KeyboardInterrupt` inside the block, for long waits that may be abandoned.

        Raises:
            KeyboardInterrupt: A signal arrived during the block or before it.
        """
        self._raising = True
        if self.is_set():
            self._raising = False
            raise KeyboardInterrupt
        try:
            yield
        except Exception:
            if self.is_set():  # py4j and pyspark replace the exception by others
                raise KeyboardInterrupt from None
            raise
        finally:
            self._raising = False

    def _handle_signal(self, number: int, _frame: FrameType | None) -> None:
        self.signal = self.signal or number
        self.set()
        if self._raising:
            raise KeyboardInterrupt
        was_interrupt_recorded()  # the work stops in order, so its errors are its own

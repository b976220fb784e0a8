"""Ctrl-C and SIGTERM as a flag that work looks at between its steps, rather than an exception in the middle of one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopFlag(threading.Event):
    """Set by SIGINT or SIGTERM while inside `with`. Only the main thread can take signals; in others it is set by hand.

    Attributes:
        signal: the number of the first signal that came, 0 before.
    """

    def __init__(self) -> None:
        super().__init__()
        self.signal = 0
        self._raising = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self.take()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def take(self) -> None:
        """Takes the signals over (again): starting Spark puts a handler of its own in place."""
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                before = signal.signal(number, self._note)
                self._before.setdefault(number, before)

    @contextmanager
    def raising(self) -> Iterator[None]:
        """Inside, a signal interrupts as well: for what is long to wait for, and can be given up in the middle.

        Raises:
            KeyboardInterrupt: a signal came, inside or before.
        """
        self._raising = True
        try:
            if self.is_set():
                raise KeyboardInterrupt
            yield
        finally:
            self._raising = False

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.signal = self.signal or number
        self.set()
        if self._raising:
            raise KeyboardInterrupt

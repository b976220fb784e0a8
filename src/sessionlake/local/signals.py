"""A flag for Ctrl-C and SIGTERM that work checks between its steps, so that no step is interrupted by an exception."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopFlag(threading.Event):
    """An event that SIGINT or SIGTERM sets while its `with` block runs.

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
        self.install_handlers()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def install_handlers(self) -> None:
        """Installs the signal handlers. Call it again after Spark has started, because Spark replaces them."""
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                before = signal.signal(number, self._handle_signal)
                self._before.setdefault(number, before)

    @contextmanager
    def raise_on_signal(self) -> Iterator[None]:
        """Makes a signal also raise `KeyboardInterrupt` inside the block, for long waits that may be abandoned.

        Raises:
            KeyboardInterrupt: A signal arrived during the block or before it.
        """
        self._raising = True
        try:
            if self.is_set():
                raise KeyboardInterrupt
            yield
        finally:
            self._raising = False

    def _handle_signal(self, number: int, _frame: FrameType | None) -> None:
        self.signal = self.signal or number
        self.set()
        if self._raising:
            raise KeyboardInterrupt

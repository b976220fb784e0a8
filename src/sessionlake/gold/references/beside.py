"""What is done beside gold's stream, in a thread of its own, as long as the stream runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from sessionlake.errors import SessionlakeError
from sessionlake.streaming.errors import explain
from sessionlake.streaming.query import LayerQuery


class Beside:
    """A step that is repeated: at once as long as it finds something to do, else after a pause.

    Args:
        step: says whether there was something to do.
        pause: in seconds.
    """

    def __init__(self, name: str, step: Callable[[], bool], pause: float) -> None:
        self._step, self._pause = step, pause
        self._stop, self._idle, self._wake = (threading.Event() for _ in range(3))
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.error: BaseException | None = None

    def start(self) -> None:
        """Begins to repeat it."""
        self._thread.start()

    def stop(self) -> None:
        """Ends after the step under way."""
        self._stop.set()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join()

    def finish(self) -> bool:
        """Does all that there is to do, here and now, where it does not run by itself; whether there was anything."""
        found = False
        while self._thread.ident is None and not self._stop.is_set() and self._step():
            found = True
        return found

    def drain(self) -> None:
        """Waits until a step that began after this found nothing to do."""
        for _ in range(2):
            self._idle.clear()
            self._wake.set()
            while self._thread.is_alive() and not self._idle.wait(0.1):
                pass

    def _run(self) -> None:
        try:
            while True:
                self._wake.clear()
                if self._stop.is_set():
                    return
                if not self._step():
                    self._idle.set()
                    self._wake.wait(self._pause)
        except BaseException as error:  # noqa: BLE001 - handed to whoever runs the layer
            self.error = error


def finish(beside: Sequence[Beside]) -> None:
    """Does all that there is to do, what one has left for another, too."""
    while any([one.finish() for one in beside]):  # noqa: C419  (each of them, in turn)
        pass


class AccompaniedQuery(LayerQuery):
    """A running layer, and what is done beside it."""

    def __init__(self, layer: str, checkpoint: str) -> None:
        super().__init__(layer, checkpoint)
        self._beside: Sequence[Beside] = ()

    def accompany(self, beside: Sequence[Beside], *, once: bool) -> AccompaniedQuery:
        """Begins what is done beside it; `once`, it is done when the stream has ended."""
        self._beside = beside
        for one in () if once else beside:
            one.start()
        return self

    def stop(self) -> None:
        """See `LayerQuery`."""
        super().stop()
        for one in self._beside:
            one.stop()

    def wait(self, seconds: float | None = None) -> bool:
        """See `LayerQuery`."""
        ended = super().wait(seconds)
        if ended:
            try:
                finish(self._beside)
            except SessionlakeError:
                raise
            except Exception as error:
                raise explain(error, self.layer, self.checkpoint) from error
        return ended

    def check(self) -> None:
        """See `LayerQuery`."""
        super().check()
        for one in self._beside:
            if isinstance(one.error, SessionlakeError):
                raise one.error
            if one.error is not None:
                raise explain(one.error, self.layer, self.checkpoint) from one.error

    def drain(self) -> None:
        """See `LayerQuery`."""
        super().drain()
        for one in self._beside:
            one.drain()
        self.check()

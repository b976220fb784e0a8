"""Requests that running layers pause for a while and release their claims, so that another process can change tables.

An operation that needs these claims makes the request. The request is a file beside the checkpoints, which all
processes of a lake share. The requesting process rewrites the file while it lives and removes it at the end. A file
that was not rewritten for a while is left over from a dead process and is ignored.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sessionlake.settings.model import Settings

_LOOK_SECONDS = 0.25
_BEAT_SECONDS = 15.0
# Much longer than the time between two rewrites: the storage may have another clock and report a file's time late.
_VOID_SECONDS = 120.0


@contextmanager
def request_pause(settings: Settings, requester: str) -> Iterator[None]:
    """Asks all layers, also those of other processes, to pause until the block ends.

    Args:
        settings: The settings of the lake.
        requester: The reason that the layers report, such as "a session is being forgotten".
    """
    file, done = _find_pause_request_path(settings), threading.Event()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(requester, encoding="utf-8")
    beat = threading.Thread(target=_renew_pause_request, args=(file, requester, done), name="aside", daemon=True)
    beat.start()
    try:
        yield
    finally:
        done.set()
        beat.join()
        file.unlink(missing_ok=True)


def read_pause_reason(settings: Settings) -> str | None:
    """Returns the reason why layers are asked to pause; None if there is no request."""
    file = _find_pause_request_path(settings)
    try:
        if time.time() - file.stat().st_mtime > _VOID_SECONDS:
            return None
        return file.read_text(encoding="utf-8")
    except OSError:
        return None


def wait_while_paused(settings: Settings, stop: threading.Event, reason: str, report: Callable[[str], None]) -> None:
    """Waits until no process asks layers to pause, or until `stop` is set. The caller must have released its claims.

    Args:
        settings: The settings of the lake.
        stop: An event that ends the waiting.
        reason: The reason of the pause, for the operator.
        report: Called with a message for the operator.
    """
    report(f"pausing: {reason}")
    while read_pause_reason(settings) is not None and not stop.wait(_LOOK_SECONDS):
        pass
    report("resuming")


def _renew_pause_request(file: Path, requester: str, stop: threading.Event) -> None:
    while not stop.wait(_BEAT_SECONDS):
        with suppress(OSError):  # the next rewrite follows soon
            file.write_text(requester, encoding="utf-8")


def _find_pause_request_path(settings: Settings) -> Path:
    return Path(f"{settings.checkpoint_path('aside')}.request")

"""Layers that run asked to stand aside for a while, by one who needs all that they have claimed.

The request is a file beside the checkpoints, which all processes of a lake share: who asks touches it as long as it
lives, and removes it at the end. One that has not been touched for a while is nobody's any more.
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
# Longer than a beat by far: a file's time is the storage's, which may be another clock's, and come late.
_VOID_SECONDS = 120.0


@contextmanager
def asking(settings: Settings, who: str) -> Iterator[None]:
    """Asks all layers to stand aside until the block is left.

    Args:
        who: what they tell, as in "a session is being forgotten".
    """
    file, done = _file(settings), threading.Event()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(who, encoding="utf-8")
    beat = threading.Thread(target=_beat, args=(file, who, done), name="aside", daemon=True)
    beat.start()
    try:
        yield
    finally:
        done.set()
        beat.join()
        file.unlink(missing_ok=True)


def asked(settings: Settings) -> str | None:
    """Why layers are to stand aside; None if nobody asks."""
    file = _file(settings)
    try:
        if time.time() - file.stat().st_mtime > _VOID_SECONDS:
            return None
        return file.read_text(encoding="utf-8")
    except OSError:
        return None


def stand_aside(settings: Settings, stop: threading.Event, why: str, say: Callable[[str], None]) -> None:
    """Returns when nobody asks any more, or `stop` is set; what was claimed must have been given back."""
    say(f"standing aside: {why}")
    while asked(settings) is not None and not stop.wait(_LOOK_SECONDS):
        pass
    say("going on")


def _beat(file: Path, who: str, done: threading.Event) -> None:
    while not done.wait(_BEAT_SECONDS):
        with suppress(OSError):  # the next beat comes soon
            file.write_text(who, encoding="utf-8")


def _file(settings: Settings) -> Path:
    return Path(f"{settings.checkpoint('aside')}.request")

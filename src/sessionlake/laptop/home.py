"""The home folder, checked before anything costly starts."""

from __future__ import annotations

import fcntl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sessionlake.config import Settings
from sessionlake.errors import MachineError


def require_home(settings: Settings, *folders: str) -> Path:
    """Makes the home and the named folders in it.

    Args:
        folders: paths below the home, made if missing.

    Returns:
        The home.

    Raises:
        MachineError: the home cannot be made or written.
    """
    home = settings.home
    try:
        for folder in (home, *(home / name for name in folders)):
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
    except OSError as error:
        raise MachineError(
            f"home {home} cannot be written ({error.strerror or error}): make it writable, "
            "or name another folder with SESSIONLAKE_HOME"
        ) from None
    return home


@contextmanager
def claim(settings: Settings, name: str, doing: str) -> Iterator[None]:
    """Keeps a second process of this machine from doing the same over the same home.

    Args:
        name: of the lock file.
        doing: what the other process does, as in "runs silver".

    Raises:
        MachineError: one does already.
    """
    with (require_home(settings, "locks") / "locks" / name).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise MachineError(
                f"another process {doing} over {settings.home}: stop it first, "
                "or name another home with SESSIONLAKE_HOME"
            ) from None
        yield


@contextmanager
def turn(settings: Settings, name: str) -> Iterator[None]:
    """Waits until no other thread or process of this machine is in a block of the same name.

    Args:
        name: of the lock file.
    """
    locks = settings.home / "locks"
    locks.mkdir(parents=True, exist_ok=True)
    with (locks / name).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield

"""The home folder, checked before anything costly starts, and the locks in it."""

from __future__ import annotations

import fcntl
import os
import re
import socket
import stat
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from sessionlake.errors import ClaimedError, MachineError
from sessionlake.local.paths import private_folder
from sessionlake.settings.model import Settings

# delta-rs decodes the first twice, and refuses the others (delta-kernel-rs, issue 918).
_UNREADABLE = re.compile(r"%[0-9A-Fa-f]{2}|[\[\]|^\\\x00-\x1f\x7f]")


class _Held(threading.local):
    """The lock files of `turn` that this thread holds."""

    def __init__(self) -> None:
        self.paths: set[Path] = set()


_held = _Held()


@dataclass(frozen=True)
class Holder:
    """A process that does what no other may do meanwhile.

    Attributes:
        process: which one, and on which machine.
        doing: as in "runs silver".
    """

    process: str
    doing: str
    since: datetime

    @classmethod
    def here(cls, doing: str) -> Holder:
        """This process, from now on."""
        return cls(f"{socket.gethostname()}, process {os.getpid()}", doing, datetime.now(UTC))

    def __str__(self) -> str:
        return f"{self.process}, since {self.since:%Y-%m-%d %H:%M:%S}Z"


def refusal(settings: Settings, holder: Holder | None, name: str, way_on: str) -> ClaimedError:
    """What is told to the second one.

    Args:
        holder: None if it has not said yet who it is.
        name: of what it holds.
        way_on: what there is to do.
    """
    said = f"has {name}" if holder is None else holder.doing
    who = "" if holder is None else f" ({holder})"
    return ClaimedError(f"another process {said} over {settings.place}{who}: {way_on}")


def require_home(settings: Settings, *folders: str) -> Path:
    """Makes the home, which nobody else can read, and the named folders in it. One that is there keeps its rights.

    Args:
        folders: paths below the home, made if missing.

    Returns:
        The home.

    Raises:
        MachineError: the home cannot be made or written, or delta-rs could not open its tables.
    """
    home = settings.home
    _refuse_unreadable(home)
    try:
        for folder in (private_folder(home), *(home / name for name in folders)):
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
    except OSError as error:
        raise MachineError(
            f"home {home} cannot be written ({error.strerror or error}): make it writable, "
            "or name another folder with SESSIONLAKE_HOME"
        ) from None
    return home


def wider_rights(settings: Settings) -> str | None:
    """The rights of the home, as `chmod` takes them, if others than its owner have any; None if they have none."""
    rights = stat.S_IMODE(settings.home.stat().st_mode)
    return f"{rights:o}" if rights & (stat.S_IRWXG | stat.S_IRWXO) else None


def _refuse_unreadable(home: Path) -> None:
    found = _UNREADABLE.search(str(home.resolve()))
    if found:
        raise MachineError(
            f"home {home} has {found[0]!r} in its path ({home.resolve()}), with which delta-rs cannot open tables: it "
            "takes `%` before two hexadecimal digits for another character, and refuses brackets, `|`, `^`, backslash "
            "and control characters. Name another folder with SESSIONLAKE_HOME, or rename that one"
        )


@contextmanager
def claim(settings: Settings, name: str, doing: str) -> Iterator[None]:
    """Keeps a second process of this machine from doing the same over the same home.

    The lock is the system's: it ends with the process, however that ends. The file says who has it.

    Args:
        name: of the lock file.
        doing: what this process does, as in "runs silver".

    Raises:
        ClaimedError: another holds it, and who that is.
    """
    with (require_home(settings, "locks") / "locks" / name).open("a+b") as lock:
        lock.seek(0)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            way_on = "stop it first, or name another home with SESSIONLAKE_HOME"
            raise refusal(settings, _holder(lock.read()), name, way_on) from None
        lock.truncate()
        lock.write(msgspec.json.encode(Holder.here(doing)))
        lock.flush()
        yield


def _holder(said: bytes) -> Holder | None:
    try:
        return msgspec.json.decode(said, type=Holder)
    except msgspec.MsgspecError:
        return None  # it has the lock, and has not written yet


@contextmanager
def turn(settings: Settings, name: str) -> Iterator[None]:
    """Waits until no other thread or process of this machine is in a block of the same name.

    A block inside a block of the same name and thread does not wait.

    Args:
        name: of the lock file.
    """
    locks = private_folder(settings.home) / "locks"
    locks.mkdir(exist_ok=True)
    path = locks / name
    if path in _held.paths:
        yield
        return
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _held.paths.add(path)
        try:
            yield
        finally:
            _held.paths.remove(path)

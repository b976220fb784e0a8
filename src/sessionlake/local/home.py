"""The home folder: the check that it is usable, and the lock files in it."""

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

from sessionlake.errors import ClaimedByOtherProcessError, MachineSetupError
from sessionlake.local.paths import create_private_folder
from sessionlake.settings.model import Settings

# delta-rs decodes `%XX` twice, and rejects the other characters (delta-kernel-rs, issue 918).
_UNREADABLE = re.compile(r"%[0-9A-Fa-f]{2}|[\[\]|^\\\x00-\x1f\x7f]")


class _HeldLocks(threading.local):
    """The lock files that this thread holds by `hold_lock_after_waiting`."""

    def __init__(self) -> None:
        self.paths: set[Path] = set()


_held_locks = _HeldLocks()


@dataclass(frozen=True)
class LockHolder:
    """The process that holds an exclusive lock or lease.

    Attributes:
        process: Machine name and process id.
        doing: What the process does, for example "runs silver".
        since: When it took the lock.
    """

    process: str
    doing: str
    since: datetime

    @classmethod
    def describe_this_process(cls, doing: str) -> LockHolder:
        """Returns this process as the holder of a lock that it takes now."""
        return cls(f"{socket.gethostname()}, process {os.getpid()}", doing, datetime.now(UTC))

    def __str__(self) -> str:
        return f"{self.process}, since {self.since:%Y-%m-%d %H:%M:%S}Z"


def create_error_of_held_lock(
    settings: Settings, holder: LockHolder | None, name: str, fix: str
) -> ClaimedByOtherProcessError:
    """Returns the error for a process that cannot take a lock or lease because another process holds it.

    Args:
        settings: The configuration, which says where the tables are.
        holder: The other process; None if it has not written its name into the lock file yet.
        name: Name of the lock.
        fix: The part of the error that says what the operator can do.
    """
    activity = f"has {name}" if holder is None else holder.doing
    holder_text = "" if holder is None else f" ({holder})"
    return ClaimedByOtherProcessError(
        f"another process {activity} over the tables in {settings.location}{holder_text}",
        why="Only one process at a time may do this, or both would write the same rows. Nothing was changed",
        fix=fix,
    )


def create_home_folder(settings: Settings, *folders: str) -> Path:
    """Creates the home, readable by its owner only, and folders in it. Existing folders keep their access rights.

    Args:
        settings: The configuration.
        folders: Paths relative to the home, created if missing.

    Returns:
        The path of the home.

    Raises:
        MachineSetupError: The home cannot be created or written, or its path has characters that delta-rs cannot open.
    """
    home = settings.home
    _require_home_path_that_delta_rs_opens(home)
    try:
        for folder in (create_private_folder(home), *(home / name for name in folders)):
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
    except OSError as error:
        raise MachineSetupError(
            f"the home {home} cannot be written ({error.strerror or error})",
            fix="Make the folder writable, or name another one with SESSIONLAKE_HOME",
        ) from None
    return home


def read_home_mode_if_others_have_access(settings: Settings) -> str | None:
    """Returns the home's access rights as an octal number, such as `755`; None if only its owner has any."""
    rights = stat.S_IMODE(settings.home.stat().st_mode)
    return f"{rights:o}" if rights & (stat.S_IRWXG | stat.S_IRWXO) else None


def _require_home_path_that_delta_rs_opens(home: Path) -> None:
    found = _UNREADABLE.search(str(home.resolve()))
    if found:
        raise MachineSetupError(
            f"the path of the home {home} contains {found[0]!r} ({home.resolve()}), so its tables cannot be opened",
            why="delta-rs, which opens them, decodes `%` with two hexadecimal digits as another "
            "character, and rejects brackets, `|`, `^`, backslash and control characters",
            fix="Name another folder with SESSIONLAKE_HOME, or rename this one",
        )


@contextmanager
def hold_lock_without_waiting(settings: Settings, name: str, doing: str) -> Iterator[None]:
    """Holds an exclusive lock in the home during the block. Fails at once if another process holds it.

    The operating system releases the lock when the process ends, even if it is killed. The lock file names the holder.

    Args:
        settings: The configuration.
        name: Name of the lock file.
        doing: What this process does, for example "runs silver".

    Raises:
        ClaimedByOtherProcessError: Another process of this machine holds the lock. The text names it.
    """
    with (create_home_folder(settings, "locks") / "locks" / name).open("a+b") as lock:
        lock.seek(0)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            fix = "Stop it or wait until it ends, and run the command again. Or name another home with SESSIONLAKE_HOME"
            raise create_error_of_held_lock(settings, _parse_lock_holder(lock.read()), name, fix) from None
        lock.truncate()
        lock.write(msgspec.json.encode(LockHolder.describe_this_process(doing)))
        lock.flush()
        yield


def _parse_lock_holder(content: bytes) -> LockHolder | None:
    try:
        return msgspec.json.decode(content, type=LockHolder)
    except msgspec.MsgspecError:
        return None  # the holder has taken the lock but not written its name yet


@contextmanager
def hold_lock_after_waiting(settings: Settings, name: str) -> Iterator[None]:
    """Holds an exclusive lock in the home during the block. Waits while another thread or process holds it.

    The lock is reentrant: a thread that holds it enters an inner block without waiting.

    Args:
        settings: The configuration.
        name: Name of the lock file.
    """
    locks = create_private_folder(settings.home) / "locks"
    locks.mkdir(exist_ok=True)
    path = locks / name
    if path in _held_locks.paths:
        yield
        return
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _held_locks.paths.add(path)
        try:
            yield
        finally:
            _held_locks.paths.remove(path)

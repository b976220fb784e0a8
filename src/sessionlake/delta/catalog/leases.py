"""Leases, which implement claims in a catalog: only one process at a time may do something, such as run a layer.

A lease is a row of `ops.leases`. It expires at a stored time, and then another process may take it over. A thread of
the holder renews it regularly, also during a long batch or while the layer is idle. Each of these changes commits with
the next number as Delta's transaction version. Delta accepts only one commit per number, so of two simultaneous changes
one is skipped. When the holder gives the lease back, it adds a row, which costs one Spark job. If another process has
taken the lease over meanwhile, this row has no effect, since its token is lower.

Before each commit the holder checks that it still has the lease (`Claim.require`). If it renewed the lease recently, it
relies on memory; otherwise it reads the row again. So a process that resumes after its lease expired writes nothing. If
it was suspended between check and commit, Delta skips the commit, or the commit is harmless ("One writer" in the
explanation of the architecture).

The holder's wall clock determines when the lease expires, and other processes compare it with their clocks. A holder
trusts its memory for only half of the lease's length, so the clocks may differ by the other half.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Protocol

from sessionlake.delta.catalog.clocks import ClockReading
from sessionlake.delta.schemas.names import LEASES
from sessionlake.errors import ClaimedByOtherProcessError, LakeError
from sessionlake.local.home import LockHolder, create_error_of_held_lock
from sessionlake.settings.model import Settings

_LOG = logging.getLogger(__name__)

LENGTH = timedelta(minutes=2)
# Number of renewals per lease length, which cost a second of CPU each; and, below, the part of the length for which the
# holder trusts its memory.
_RENEWED = 3
_TRUSTED = 2
# Attempts to change a row. If two processes change it at the same time, one of them must try again.
_ATTEMPTS = 5


@dataclass(frozen=True)
class LeaseRow:
    """A row of `ops.leases`: which process may work on something, such as a layer, and for how long.

    Attributes:
        name: what the lease is for, such as a layer.
        number: number of the row's change. It rises by one with each change.
        token: fencing token. It rises by one each time that the lease gets a new holder.
        claim: id of the `HeldLease` that acquired the lease.
        holder: description of the process that holds the lease; None if the lease was given back.
        doing: what the holder does, as in "runs silver".
        acquired_at: wall-clock time at which the holder acquired the lease.
        renewed_at: wall-clock time of the last renewal.
        expires_at: wall-clock time from which another process may take the lease over.
        settled: True if the last holder has finished everything that it started, so that it commits nothing later.
    """

    name: str
    number: int
    token: int
    claim: str
    holder: str | None
    doing: str
    acquired_at: datetime
    renewed_at: datetime
    expires_at: datetime
    settled: bool

    def is_held(self, now: datetime) -> bool:
        """True if a process holds the lease and it has not expired, so that no other process may take it over."""
        return self.holder is not None and now < self.expires_at

    @property
    def rank(self) -> tuple[int, bool, int]:
        """Sort key of rows with the same name: the row with the highest rank is the lease as it is now.

        A row of a later holder ranks higher. Of the same holder, the row that gives the lease back ranks highest.
        """
        return self.token, self.holder is None, self.number

    def __str__(self) -> str:
        return str(self._lock_holder)

    @property
    def _lock_holder(self) -> LockHolder:
        return LockHolder(self.holder or "", self.doing, self.acquired_at)

    def create_held_by_other_process_error(self, settings: Settings) -> ClaimedByOtherProcessError:
        """Returns the error for another process that wants the lease. It names the holder and what the holder does."""
        until = _format_utc(self.expires_at)
        fix = f"Stop it first. If that process is gone for good, run the command again after {until}"
        return create_error_of_held_lock(settings, self._lock_holder, self.name, fix)


class LeaseTable(Protocol):
    """Access to the table `ops.leases`.

    Attributes:
        identifier: the table's full, quoted name in SQL.
    """

    identifier: str

    def read_lease(self, name: str) -> LeaseRow | None:
        """Returns the stored row with this name and the highest rank; None if there is none."""

    def write_lease(self, lease: LeaseRow) -> bool:
        """Replaces all stored rows with this lease's name, if no call of this method has used its number before.

        Returns:
            True if the rows were replaced. False if another process used the number first or another commit conflicted.
        """

    def append_release_row(self, lease: LeaseRow) -> None:
        """Adds a row with which the holder gives the lease back. Other rows stay until the next `write_lease`."""


class HeldLease:
    """A lease that this process has acquired. It may be lost to another process later.

    Args:
        settings: have the length of leases.
        table: the table with the leases.
        name: what the lease is for, such as a layer.
        doing: what this process does, as in "runs silver".
        clock: function that returns the present moment.

    Attributes:
        took_over: True if the previous holder did not end normally, so that it may still commit something.

    Raises:
        ClaimedByOtherProcessError: another process holds the lease.
    """

    def __init__(
        self,
        settings: Settings,
        table: LeaseTable,
        name: str,
        doing: str,
        clock: Callable[[], ClockReading] = ClockReading.read_clocks,
    ) -> None:
        self._settings, self._table, self._clock = settings, table, clock
        self._id = uuid.uuid4().hex
        self._lock = threading.Lock()
        self._lost: ClaimedByOtherProcessError | None = None
        self.name, self.took_over = name, False
        self._renewed, self._lease = self._acquire_lease(LockHolder.describe_this_process(doing))

    @property
    def fencing_token(self) -> int:
        """A number that is higher than the numbers of all earlier holders. Delta skips commits with lower numbers."""
        return self._lease.token

    def require_lease_still_held(self) -> None:
        """Checks that this process still holds the lease, before it commits something.

        Raises:
            ClaimedByOtherProcessError: another process has taken the lease over. Every later call raises this error,
                too.
        """
        if self._lost is not None:
            raise self._lost
        if self._clock().compute_longest_time_since(self._renewed) >= LENGTH / _TRUSTED:
            self.renew_lease()

    def renew_lease(self) -> None:
        """Extends the lease by its full length from now on.

        Raises:
            ClaimedByOtherProcessError: another process has taken the lease over.
        """
        with self._lock:
            for _ in range(_ATTEMPTS):
                begun = self._clock()
                found = self._write_changed_lease(
                    self._lease, renewed_at=begun.wall_time, expires_at=begun.wall_time + LENGTH
                )
                if found is None or found.claim != self._id:
                    self._lost = self._create_lost_lease_error(found)
                    raise self._lost
                self._lease = found
                if found.renewed_at == begun.wall_time:
                    self._renewed = begun
                    return
        raise LakeError(
            f"{self.name}: this process could not renew its lease in {LEASES}, which allows it to write",
            why=f"Other processes change {LEASES} at the same time",
            fix="Run the command again: it resumes after what was committed",
        )

    def release_lease(self, *, settled: bool = True) -> None:
        """Gives the lease back, so that another process can acquire it at once. Does nothing if the lease is lost.

        Args:
            settled: True if everything that was started under the lease has finished.
        """
        with self._lock:
            if self._lost is None and self._lease.holder is not None:
                freed = _copy_lease_with_changed_fields(
                    self._lease, holder=None, expires_at=self._clock().wall_time, settled=settled
                )
                self._table.append_release_row(freed)
                self._lease = freed

    def _acquire_lease(self, mine: LockHolder) -> tuple[ClockReading, LeaseRow]:
        for _ in range(_ATTEMPTS):
            begun, before = self._clock(), self._table.read_lease(self.name)
            if before is not None and before.is_held(begun.wall_time):
                raise before.create_held_by_other_process_error(self._settings)
            none = LeaseRow(
                self.name, 0, 0, "", None, "", begun.wall_time, begun.wall_time, begun.wall_time, settled=True
            )
            found = self._write_changed_lease(
                before or none,
                token=(before or none).token + 1,
                claim=self._id,
                holder=mine.process,
                doing=mine.doing,
                acquired_at=begun.wall_time,
                renewed_at=begun.wall_time,
                expires_at=begun.wall_time + LENGTH,
                settled=False,
            )
            if found is not None and found.claim == self._id:
                self.took_over = before is not None and (before.holder is not None or not before.settled)
                if before is not None and before.holder is not None:
                    _warn_about_takeover(before)
                return begun, found
        raise ClaimedByOtherProcessError(
            f"{self.name}: several processes in {self._settings.location} try to get its lease at the same time",
            why="Only the one with the lease may write",
            fix="Run the command again when no other process runs",
        )

    def _write_changed_lease(self, before: LeaseRow, **changed: object) -> LeaseRow | None:
        """Changes fields of the lease's row in the lease table.

        Args:
            before: the row as last read.
            changed: new values of fields, by name.

        Returns:
            The row as it is now. If another process changed it first, it has that process's values.
        """
        wanted = _copy_lease_with_changed_fields(before, **changed)
        return wanted if self._table.write_lease(wanted) else self._table.read_lease(self.name)

    def _create_lost_lease_error(self, stored_lease: LeaseRow | None) -> ClaimedByOtherProcessError:
        until, then = _format_utc(self._lease.expires_at), "another process has had it since"
        if stored_lease is not None and stored_lease.holder is not None:
            then = f"another process {stored_lease.doing} now ({stored_lease})"
        return ClaimedByOtherProcessError(
            f"{self.name}: this process had to renew its lease, which allows it to write, before {until}, and {then}",
            why="This process writes nothing more. What it has committed stays, and the other process continues",
            fix="Leave the other process running, or stop it and run the command again",
        )


def _copy_lease_with_changed_fields(before: LeaseRow, **changed: object) -> LeaseRow:
    """Returns a copy of a lease's row with changed fields, and with the next number."""
    return replace(before, number=before.number + 1, **changed)  # type: ignore[arg-type]  # callers name fields of Lease


def _format_utc(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S}Z"


def _warn_about_takeover(before: LeaseRow) -> None:
    _LOG.warning(
        "%s: taken over from a process that %s and stands still, or is gone (%s); it last renewed its lease at %s",
        before.name, before.doing, before, _format_utc(before.renewed_at),
    )  # fmt: skip


# Claims of this process, by the SQL name of their lease table. Before each commit in that catalog all are checked.
_HELD: dict[str, list[HeldLease]] = {}


@contextmanager
def hold_lease(
    settings: Settings, table: LeaseTable, name: str, doing: str, on_takeover: Callable[[int], None] = lambda _: None
) -> Iterator[None]:
    """Acquires a lease, and renews it in a background thread until the block ends.

    Args:
        settings: have the length of leases.
        table: the table with the leases.
        name: what the lease is for, such as a layer.
        doing: what this process does, as in "runs silver".
        on_takeover: called before the block if the previous holder may still commit something. Its argument is the
            fencing token of this process.

    Raises:
        ClaimedByOtherProcessError: another process holds the lease, or took it over during the block. In the second
            case this error replaces an error of the block.
    """
    claim, done = HeldLease(settings, table, name, doing), threading.Event()
    keeper = threading.Thread(target=_renew_lease_until_done, args=(claim, done), name=f"lease-{name}", daemon=True)
    mine = _HELD.setdefault(table.identifier, [])
    mine.append(claim)
    keeper.start()
    settled = False
    try:
        if claim.took_over:
            on_takeover(claim.fencing_token)
        yield
        settled = True
    except Exception:
        _raise_if_lease_lost(claim)
        raise
    finally:
        done.set()
        keeper.join()
        mine.remove(claim)
        _try_release_lease(claim, settled=settled)


def _renew_lease_until_done(claim: HeldLease, done: threading.Event) -> None:
    """Renews the lease regularly until `done` is set.

    Tries again after errors, because every commit checks the lease.
    """
    while not done.wait(LENGTH.total_seconds() / _RENEWED):
        try:
            claim.renew_lease()
        except ClaimedByOtherProcessError:
            return
        except Exception as error:  # noqa: BLE001 - whatever the table's place raises
            _LOG.warning("%s: its lease could not be renewed, and is tried again soon: %s", claim.name, error)


def _try_release_lease(claim: HeldLease, *, settled: bool) -> None:
    try:
        claim.release_lease(settled=settled)
    except Exception as error:  # noqa: BLE001 - the work is done, and the lease ends by itself
        _LOG.warning("%s: its lease could not be given back, and ends by itself: %s", claim.name, error)


def _raise_if_lease_lost(claim: HeldLease) -> None:
    """Checks that this process has not lost its lease. Does nothing if the lease table cannot be read.

    Raises:
        ClaimedByOtherProcessError: another process has taken the lease over.
    """
    try:
        claim.require_lease_still_held()
    except ClaimedByOtherProcessError:
        raise
    except Exception:  # noqa: BLE001, S110 - the first error is the one to report
        pass


def require_all_leases_still_held(table: str) -> None:
    """Checks that this process still holds all leases that it acquired in a lease table and has not given back.

    Args:
        table: full, quoted name of the lease table in SQL.

    Raises:
        ClaimedByOtherProcessError: another process has taken over one of these leases.
    """
    for claim in tuple(_HELD.get(table, ())):
        claim.require_lease_still_held()


def read_fencing_token(table: str, name: str) -> int:
    """Returns the fencing token of the lease that this process holds under this name; 0 if it holds none.

    Args:
        table: full, quoted name of the lease table in SQL.
        name: what the lease is for, such as a layer.
    """
    return next((claim.fencing_token for claim in _HELD.get(table, ()) if claim.name == name), 0)

"""Leases: in a catalog, one process at a time does what it has claimed, and a suspended process notices its loss.

A lease is a row of `ops.leases`. Each change of the row has the next number as Delta's transaction version, and Delta
accepts one commit per number. So of two simultaneous changes one is skipped, whatever the table's isolation level. A
thread of the holder renews the lease, since a rebuild or one batch can take longer than a lease, and an idle layer
commits nothing. A lease that is not renewed in time may be taken over.

Before each commit the holder checks that it still has the lease (`Claim.require`). If it renewed recently, by the wall
clock and by the monotonic clock, it relies on memory; otherwise it reads the row again. So a process that resumes after
its lease has expired writes nothing. For a commit that was checked just before the suspension, see "One writer" in the
explanation of the architecture: Delta skips it, or it is harmless.

The holder's wall clock sets the lease's end, and another process's clock is compared with it. A holder trusts its
memory for only half of the lease, so the clocks may differ by the other half.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Protocol

from sessionlake.delta.schemas.names import LEASES
from sessionlake.errors import ClaimedError, LakeError
from sessionlake.local.home import Holder, claimed_error
from sessionlake.settings.model import Settings

_LOG = logging.getLogger(__name__)

LENGTH = timedelta(minutes=2)
# Renewals per lease length (each costs a second of CPU), and the part of the length for which the holder trusts memory.
_RENEWED = 3
_TRUSTED = 2
# Two processes that change a row at the same time do not collide forever.
_ATTEMPTS = 5


@dataclass(frozen=True)
class Lease:
    """A row of `ops.leases`.

    Attributes:
        number: rises by one with each change of the row.
        token: rises by one each time the lease changes hands.
        claim: id of the claim that acquired it.
        holder: the process; None if the lease was given back.
        settled: True if everything that the last holder began has ended.
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
        """True if no other process may take the lease."""
        return self.holder is not None and now < self.expires_at

    def __str__(self) -> str:
        return str(self._holder)

    @property
    def _holder(self) -> Holder:
        return Holder(self.holder or "", self.doing, self.acquired_at)

    def refusal(self, settings: Settings) -> ClaimedError:
        """Returns the error for another process that wants the lease."""
        fix = f"Stop it first. If it is gone for good, {self.name} can be taken over after {_utc_text(self.expires_at)}"
        return claimed_error(settings, self._holder, self.name, fix)


class LeaseTable(Protocol):
    """The table `ops.leases`.

    Attributes:
        identifier: its name in SQL.
    """

    identifier: str

    def read(self, name: str) -> Lease | None:
        """Returns the current row of this name; None if there is none."""

    def write(self, lease: Lease) -> bool:
        """Replaces the row of the lease's name, if the lease's number is higher than that of every earlier row.

        Returns:
            False if the row was not replaced: another process used the number first, or another commit conflicted.
        """


@dataclass(frozen=True)
class Moment:
    """A moment on two clocks: the wall clock, which can be set, and the monotonic one, which may stop in standby."""

    wall: datetime
    steady: float

    @classmethod
    def now(cls) -> Moment:
        """Returns the present moment."""
        return cls(datetime.now(UTC), time.monotonic())

    def longest_since(self, before: Moment) -> timedelta:
        """Returns the time since another moment, by the clock that shows more."""
        return max(self.wall - before.wall, timedelta(seconds=self.steady - before.steady))

    def shortest_since(self, before: Moment) -> timedelta:
        """Returns the time since another moment, by the clock that shows less."""
        return min(self.wall - before.wall, timedelta(seconds=self.steady - before.steady))

    def at_wall(self, wall: datetime) -> Moment:
        """Returns the moment at which the wall clock showed this time, if both clocks have run equally since."""
        return Moment(wall, self.steady - (self.wall - wall).total_seconds())


class Claim:
    """A lease that this process holds or held.

    Args:
        doing: what the process does with it, as in "runs silver".
        clock: returns the present moment.

    Attributes:
        took_over: True if the holder before may still commit something, because it did not end normally.
    """

    def __init__(
        self, settings: Settings, table: LeaseTable, name: str, doing: str, clock: Callable[[], Moment] = Moment.now
    ) -> None:
        self._settings, self._table, self._clock = settings, table, clock
        self._id = uuid.uuid4().hex
        self._lock = threading.Lock()
        self._lost: ClaimedError | None = None
        self.name, self.took_over = name, False
        self._renewed, self._lease = self._acquire(Holder.this_process(doing))

    @property
    def token(self) -> int:
        """The fencing token: higher than that of every earlier holder."""
        return self._lease.token

    def require(self) -> None:
        """Checks that this process holds the lease long enough for the pending commit.

        Raises:
            ClaimedError: another process has taken the lease over; every later call raises it, too.
        """
        if self._lost is not None:
            raise self._lost
        if self._clock().longest_since(self._renewed) >= LENGTH / _TRUSTED:
            self.renew()

    def renew(self) -> None:
        """Extends the lease, unless another process has taken it over.

        Raises:
            ClaimedError: another process has taken it over.
        """
        with self._lock:
            for _ in range(_ATTEMPTS):
                begun = self._clock()
                found = self._write(self._lease, renewed_at=begun.wall, expires_at=begun.wall + LENGTH)
                if found is None or found.claim != self._id:
                    self._lost = self._loss(found)
                    raise self._lost
                self._lease = found
                if found.renewed_at == begun.wall:
                    self._renewed = begun
                    return
        raise LakeError(
            f"{self.name}: its lease could not be renewed",
            why=f"Other processes change {LEASES} at the same time",
            fix="Run the command again",
        )

    def release(self, *, settled: bool = True) -> None:
        """Gives the lease back, unless it is lost.

        Args:
            settled: True if everything that was begun under it has ended.
        """
        with self._lock:
            for _ in range(_ATTEMPTS):
                if self._lost is not None or self._lease.claim != self._id or self._lease.holder is None:
                    return
                freed = _changed(self._lease, holder=None, expires_at=self._clock().wall, settled=settled)
                if self._table.write(freed):
                    self._lease = freed
                    return
                self._lease = self._table.read(self.name) or self._lease

    def _acquire(self, mine: Holder) -> tuple[Moment, Lease]:
        for _ in range(_ATTEMPTS):
            begun, before = self._clock(), self._table.read(self.name)
            if before is not None and before.is_held(begun.wall):
                raise before.refusal(self._settings)
            none = Lease(self.name, 0, 0, "", None, "", begun.wall, begun.wall, begun.wall, settled=True)
            found = self._write(
                before or none,
                token=(before or none).token + 1,
                claim=self._id,
                holder=mine.process,
                doing=mine.doing,
                acquired_at=begun.wall,
                renewed_at=begun.wall,
                expires_at=begun.wall + LENGTH,
                settled=False,
            )
            if found is not None and found.claim == self._id:
                self.took_over = before is not None and (before.holder is not None or not before.settled)
                if before is not None and before.holder is not None:
                    _warn_taken_over(before)
                return begun, found
        raise ClaimedError(
            f"{self.name}: several processes try to claim it in {self._settings.place}",
            fix="Run the command again",
        )

    def _write(self, before: Lease, **changed: object) -> Lease | None:
        """Changes the row `before`. Returns the row as it is afterwards, also if another process changed it."""
        wanted = _changed(before, **changed)
        return wanted if self._table.write(wanted) else self._table.read(self.name)

    def _loss(self, found: Lease | None) -> ClaimedError:
        if found is None or found.holder is None:
            then = "another process has had it since"
        else:
            then = f"another process {found.doing} now ({found})"
        return ClaimedError(
            f"{self.name}: this process did not renew its lease before {_utc_text(self._lease.expires_at)}, and {then}",
            why="This process writes nothing more. What it has committed stays, and the other process continues",
        )


def _changed(before: Lease, **changed: object) -> Lease:
    """Returns the row after its next change."""
    return replace(before, number=before.number + 1, **changed)  # type: ignore[arg-type]  # callers name fields of Lease


def _utc_text(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S}Z"


def _warn_taken_over(before: Lease) -> None:
    _LOG.warning(
        "%s: taken over from a process that %s and stands still, or is gone (%s); it last renewed its lease at %s",
        before.name, before.doing, before, _utc_text(before.renewed_at),
    )  # fmt: skip


# Claims of this process by lease table. Every write in that place requires all of them.
_HELD: dict[str, list[Claim]] = {}


@contextmanager
def hold_lease(
    settings: Settings, table: LeaseTable, name: str, doing: str, on_takeover: Callable[[int], None] = lambda _: None
) -> Iterator[None]:
    """Claims a lease and keeps it renewed until the block ends.

    Args:
        on_takeover: called with the claim's token before the block, if the holder before may still commit something.

    Raises:
        ClaimedError: another process has the lease. If it was taken over during the block, this replaces the block's
            error.
    """
    claim, done = Claim(settings, table, name, doing), threading.Event()
    keeper = threading.Thread(target=_keep, args=(claim, done), name=f"lease-{name}", daemon=True)
    mine = _HELD.setdefault(table.identifier, [])
    mine.append(claim)
    keeper.start()
    settled = False
    try:
        if claim.took_over:
            on_takeover(claim.token)
        yield
        settled = True
    except Exception:
        _require_if_known(claim)
        raise
    finally:
        done.set()
        keeper.join()
        mine.remove(claim)
        _release(claim, settled=settled)


def _keep(claim: Claim, done: threading.Event) -> None:
    """Renews the lease regularly. After an error it tries again; commits check the lease themselves."""
    while not done.wait(LENGTH.total_seconds() / _RENEWED):
        try:
            claim.renew()
        except ClaimedError:
            return
        except Exception as error:  # noqa: BLE001 - whatever the table's place raises
            _LOG.warning("%s: its lease could not be renewed, and is tried again soon: %s", claim.name, error)


def _release(claim: Claim, *, settled: bool) -> None:
    try:
        claim.release(settled=settled)
    except Exception as error:  # noqa: BLE001 - the work is done, and the lease ends by itself
        _LOG.warning("%s: its lease could not be given back, and ends by itself: %s", claim.name, error)


def _require_if_known(claim: Claim) -> None:
    """Raises if the lease is known to be lost. Other errors are ignored: the lease table itself may have failed."""
    try:
        claim.require()
    except ClaimedError:
        raise
    except Exception:  # noqa: BLE001, S110 - what failed first is what is told
        pass


def require_leases(table: str) -> None:
    """Checks that this process still holds everything that it claimed in a lease table.

    Args:
        table: the table's name in SQL.

    Raises:
        ClaimedError: another process has taken over a claim.
    """
    for claim in tuple(_HELD.get(table, ())):
        claim.require()


def token_of(table: str, name: str) -> int:
    """Returns the fencing token of this process's claim of that name; 0 if it has none."""
    return next((claim.token for claim in _HELD.get(table, ()) if claim.name == name), 0)

"""Leases: in a catalog one process at a time does what it has claimed, and one that stood still finds it out.

A lease is a row of `ops.leases`. Each change of it bears the next number as Delta's transaction, and Delta lets one
commit come of a number: of two that change a row at once, one is passed over, whatever the table's isolation. Its
holder renews it beside its work, from a thread of its own: a rebuild, or one batch, can take longer than a lease, and a
layer without messages commits nothing. A lease that is not renewed in time may be taken over.

Before each commit the holder makes sure that it still is (`Claim.require`): from memory as long as it has renewed
lately by the wall clock and by the one that is never set, else by reading the row anew. So a process that was stopped,
and goes on past the end of its lease, writes nothing. What it had checked and not yet committed when it was stopped is
for Delta to pass over, or harmless: see docs/decisions/013-one-writer.md.

The lease's end is a moment of its holder's wall clock, and is looked at by another's. A holder relies on memory for
half of the lease alone: clocks may differ by the other half.
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
# How often in its length it is renewed (which costs a second of CPU), and the part that its holder relies on.
_RENEWED = 3
_TRUSTED = 2
# Two that change a row at once do not stay in step.
_ATTEMPTS = 5


@dataclass(frozen=True)
class Lease:
    """A row of `ops.leases`.

    Attributes:
        number: one more with each change of the row.
        token: one more each time that it changes hands.
        claim: the id of the claim that made it so.
        holder: the process; None if it was given back.
        settled: whether all that its last holder had begun has ended.
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
        """Whether nobody else may take it."""
        return self.holder is not None and now < self.expires_at

    def __str__(self) -> str:
        return str(self._holder)

    @property
    def _holder(self) -> Holder:
        return Holder(self.holder or "", self.doing, self.acquired_at)

    def refusal(self, settings: Settings) -> ClaimedError:
        """What is told to one that wants it, too."""
        fix = f"Stop it first. If it is gone for good, {self.name} can be taken over after {_utc_text(self.expires_at)}"
        return claimed_error(settings, self._holder, self.name, fix)


class LeaseTable(Protocol):
    """`ops.leases`.

    Attributes:
        identifier: what SQL calls it.
    """

    identifier: str

    def read(self, name: str) -> Lease | None:
        """The row of this name, as it is now."""

    def write(self, lease: Lease) -> bool:
        """Makes it the row of its name, if its number is greater than that of every row of this name before.

        Returns:
            False if it is not the row: another has its number already, or another commit was in the way.
        """


@dataclass(frozen=True)
class Moment:
    """A moment by two clocks: one can be set, the other stands still while the machine sleeps."""

    wall: datetime
    steady: float

    @classmethod
    def now(cls) -> Moment:
        """This one."""
        return cls(datetime.now(UTC), time.monotonic())

    def longest_since(self, before: Moment) -> timedelta:
        """How long it is ago, by the clock by which it is longer."""
        return max(self.wall - before.wall, timedelta(seconds=self.steady - before.steady))

    def shortest_since(self, before: Moment) -> timedelta:
        """As `since`, by the clock by which it is shorter."""
        return min(self.wall - before.wall, timedelta(seconds=self.steady - before.steady))

    def at_wall(self, wall: datetime) -> Moment:
        """The moment at which the clock that can be set showed this, if both have gone alike since."""
        return Moment(wall, self.steady - (self.wall - wall).total_seconds())


class Claim:
    """A lease that this process has, or had.

    Args:
        doing: what it does under it, as in "runs silver".
        clock: tells the moment.

    Attributes:
        overtook: whether the holder before may yet commit something: it has not given the lease back, or not after a
            normal end.
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
        """Greater than that of every holder before."""
        return self._lease.token

    def require(self) -> None:
        """Returns if the lease is this process's own, for long enough to commit what is at hand.

        Raises:
            ClaimedError: another has taken it over; from then on always.
        """
        if self._lost is not None:
            raise self._lost
        if self._clock().longest_since(self._renewed) >= LENGTH / _TRUSTED:
            self.renew()

    def renew(self) -> None:
        """Begins the lease anew, if nobody has taken it over.

        Raises:
            ClaimedError: somebody has.
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
        raise LakeError(f"{self.name}: its lease could not be renewed, since others change {LEASES}: run it again")

    def release(self, *, settled: bool = True) -> None:
        """Gives the lease back, unless it is lost.

        Args:
            settled: whether all that was begun under it has ended.
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
        raise ClaimedError(f"{self.name}: several processes try to have it in {self._settings.place}: run it again")

    def _write(self, before: Lease, **changed: object) -> Lease | None:
        """Changes the row that was found before; returns the row as it is then, whoever has changed it."""
        wanted = _changed(before, **changed)
        return wanted if self._table.write(wanted) else self._table.read(self.name)

    def _loss(self, found: Lease | None) -> ClaimedError:
        if found is None or found.holder is None:
            then = "another process has had it since"
        else:
            then = f"another process {found.doing} now ({found})"
        return ClaimedError(
            f"{self.name}: this process did not renew its lease before {_utc_text(self._lease.expires_at)}, and "
            f"{then}: nothing more is written here; what was committed stays, and is gone on from there"
        )


def _changed(before: Lease, **changed: object) -> Lease:
    """The row as its next change makes it."""
    return replace(before, number=before.number + 1, **changed)  # type: ignore[arg-type]  # callers name fields of Lease


def _utc_text(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S}Z"


def _warn_taken_over(before: Lease) -> None:
    _LOG.warning(
        "%s: taken over from a process that %s and stands still, or is gone (%s); it last renewed its lease at %s",
        before.name, before.doing, before, _utc_text(before.renewed_at),
    )  # fmt: skip


# What this process holds, by the table: whatever it writes in that place is written under all of it.
_HELD: dict[str, list[Claim]] = {}


@contextmanager
def hold_lease(
    settings: Settings, table: LeaseTable, name: str, doing: str, on_takeover: Callable[[int], None] = lambda _: None
) -> Iterator[None]:
    """Claims a lease, and keeps it until the block is left.

    Args:
        on_takeover: called with the claim's token, before the block, if the holder before may yet commit something.

    Raises:
        ClaimedError: another process has it; or has taken it over, which explains what else failed in the block.
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
    """Renews the lease; what fails is tried again, and in the end a commit asks for itself."""
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
    """As `require`, where something has failed already, perhaps what would have to be asked."""
    try:
        claim.require()
    except ClaimedError:
        raise
    except Exception:  # noqa: BLE001, S110 - what failed first is what is told
        pass


def require_leases(table: str) -> None:
    """Returns if all that this process has claimed by a table of leases is its own still.

    Args:
        table: what SQL calls it.

    Raises:
        ClaimedError: another process has taken over some of it.
    """
    for claim in tuple(_HELD.get(table, ())):
        claim.require()


def token_of(table: str, name: str) -> int:
    """The token of what this process has claimed so; 0 without."""
    return next((claim.token for claim in _HELD.get(table, ()) if claim.name == name), 0)

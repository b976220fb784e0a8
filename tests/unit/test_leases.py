"""Leases, by clocks and a table of the test's own: one holder at a time, and one that stood still finds it out."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from sessionlake.delta.catalog import leases
from sessionlake.delta.catalog.clocks import ClockReading
from sessionlake.delta.catalog.leases import (
    LENGTH,
    HeldLease,
    LeaseRow,
    hold_lease,
    read_fencing_token,
    require_all_leases_still_held,
)
from sessionlake.errors import ClaimedByOtherProcessError
from sessionlake.settings.model import Settings

SECOND = timedelta(seconds=1)


class Clock:
    """Two clocks of one machine, moved by hand."""

    def __init__(self) -> None:
        self.moment = ClockReading(datetime(2026, 1, 1, 12, tzinfo=UTC), 1000.0)

    def __call__(self) -> ClockReading:
        return self.moment

    def go_on(self, by: timedelta, *, wall: timedelta | None = None) -> None:
        moved = by if wall is None else wall
        self.moment = ClockReading(self.moment.wall_time + moved, self.moment.monotonic_seconds + by.total_seconds())


class Table:
    """Rows of `ops.leases`, where one change comes of a number, as Delta has it.

    Attributes:
        in_the_way: whether the next change meets that of another row.
    """

    identifier = "a.test"

    def __init__(self) -> None:
        self.rows: dict[str, LeaseRow] = {}
        self.reads = self.writes = 0
        self.before_write: Callable[[], None] = lambda: None
        self.after_write: Callable[[], None] = lambda: None
        self.in_the_way = False

    def read_lease(self, name: str) -> LeaseRow | None:
        self.reads += 1
        return self.rows.get(name)

    def write_lease(self, lease: LeaseRow) -> bool:
        self.writes += 1
        interposed, self.before_write = self.before_write, lambda: None
        interposed()
        met, self.in_the_way = self.in_the_way, False
        is_next = not met and lease.number > (self.rows[lease.name].number if lease.name in self.rows else 0)
        if is_next:
            self.rows[lease.name] = lease
        interposed, self.after_write = self.after_write, lambda: None
        interposed()
        return is_next

    def append_release_row(self, lease: LeaseRow) -> None:
        self.rows[lease.name] = max(self.rows[lease.name], lease, key=lambda row: row.rank)


class Place:
    """One table of leases, and a clock that all look at."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.table, self.clock = settings, Table(), Clock()

    def claim(self, doing: str = "runs silver") -> HeldLease:
        return HeldLease(self.settings, self.table, "silver", doing, self.clock)


@pytest.fixture
def place(settings: Settings) -> Place:
    return Place(settings)


def test_the_second_is_reported_who_has_it_what_it_does_since_when_and_until_when(place):
    place.claim("rebuilds silver")
    place.clock.go_on(SECOND)
    said = r"another process rebuilds silver over .* \(.*, process \d+, since 2026-01-01 12:00:00Z\).*\. Stop it first"
    with pytest.raises(ClaimedByOtherProcessError, match=rf"{said}.*run the command again after 2026-01-01 12:02:00Z"):
        place.claim()


def test_what_was_given_back_is_there_for_the_next_at_once_and_nobody_is_reported_a_takeover(place, caplog):
    first = place.claim()
    first.release_lease()
    second = place.claim()
    second.require_lease_still_held()
    assert second.fencing_token == first.fencing_token + 1
    assert caplog.text == ""


def test_what_is_renewed_while_another_row_is_changed_is_renewed(place):
    holder = place.claim()
    place.clock.go_on(LENGTH - SECOND)
    place.table.in_the_way = True
    holder.renew_lease()
    place.clock.go_on(SECOND)
    with pytest.raises(ClaimedByOtherProcessError):
        place.claim()


def test_what_is_given_back_behind_a_renewal_whose_answer_was_lost_is_given_back(place):
    holder = place.claim()

    def lose() -> None:
        raise OSError("the store does not answer")

    place.table.after_write = lose
    with pytest.raises(OSError, match="does not answer"):
        holder.renew_lease()
    holder.release_lease()
    place.claim()


def test_giving_back_asks_nobody(place):
    holder = place.claim()
    asked = place.table.reads
    holder.release_lease()
    assert place.table.reads == asked


def test_a_lease_is_taken_over_at_its_end_and_not_before_and_it_is_said_from_whom(place, caplog):
    former = place.claim("runs silver")
    place.clock.go_on(LENGTH - SECOND)
    with pytest.raises(ClaimedByOtherProcessError):
        place.claim()
    place.clock.go_on(SECOND)
    with caplog.at_level(logging.WARNING):
        holder = place.claim()
    assert "silver: taken over from a process that runs silver" in caplog.text
    assert (former.took_over, holder.took_over) == (False, True)
    holder.release_lease()
    assert not place.claim().took_over


def test_a_renewed_lease_lasts_from_its_renewal(place):
    holder = place.claim()
    place.clock.go_on(LENGTH - SECOND)
    holder.renew_lease()
    place.clock.go_on(LENGTH - SECOND)
    with pytest.raises(ClaimedByOtherProcessError):
        place.claim()


def test_of_two_that_find_it_free_at_once_one_has_it_and_the_other_is_reported_who(place):
    won: list[HeldLease] = []
    place.table.before_write = lambda: won.append(place.claim("rebuilds silver"))
    with pytest.raises(ClaimedByOtherProcessError, match="another process rebuilds silver"):
        place.claim()
    won[0].require_lease_still_held()


def test_of_two_that_find_it_stale_at_once_one_has_it(place):
    place.claim()
    place.clock.go_on(LENGTH)
    test_of_two_that_find_it_free_at_once_one_has_it_and_the_other_is_reported_who(place)


def test_a_holder_that_renewed_lately_asks_nobody(place):
    holder = place.claim()
    place.clock.go_on(LENGTH / 2 - SECOND)
    asked = place.table.reads
    holder.require_lease_still_held()
    assert place.table.reads == asked


@pytest.mark.parametrize(
    ("steady", "wall"),
    [(LENGTH / 2, timedelta(0)), (timedelta(0), LENGTH / 2), (LENGTH / 2, -LENGTH)],
    ids=["the wall clock was set back", "the machine slept", "far back"],
)
def test_by_either_clock_a_holder_that_has_not_renewed_for_half_a_lease_asks_the_table(place, steady, wall):
    holder = place.claim()
    place.clock.go_on(steady, wall=wall)
    asked = place.table.writes
    holder.require_lease_still_held()
    assert place.table.writes == asked + 1


def test_one_that_stood_still_past_its_lease_goes_on_if_nobody_has_taken_it_over(place):
    holder = place.claim()
    place.clock.go_on(10 * LENGTH)
    holder.require_lease_still_held()
    with pytest.raises(ClaimedByOtherProcessError):
        place.claim()


def test_one_that_stood_still_is_reported_who_has_it_and_never_writes_again_though_that_one_ends(place):
    stopped = place.claim()
    place.clock.go_on(LENGTH)
    other = place.claim("rebuilds silver")
    for _ in range(2):
        with pytest.raises(
            ClaimedByOtherProcessError, match=r"silver: .* before .* another process rebuilds silver now \(.*process"
        ):
            stopped.require_lease_still_held()
    other.release_lease()
    with pytest.raises(ClaimedByOtherProcessError):
        stopped.require_lease_still_held()


def test_one_that_stood_still_does_not_give_back_what_is_another_s_now(place):
    stopped = place.claim()
    place.clock.go_on(LENGTH)
    other = place.claim()
    with pytest.raises(ClaimedByOtherProcessError):
        stopped.require_lease_still_held()
    stopped.release_lease()
    with pytest.raises(ClaimedByOtherProcessError):
        place.claim()
    other.require_lease_still_held()


def test_one_that_stood_still_and_ends_without_asking_gives_back_nothing_of_another_s(place):
    stopped = place.claim()
    place.clock.go_on(LENGTH)
    other = place.claim()
    stopped.release_lease()
    with pytest.raises(ClaimedByOtherProcessError):
        place.claim()
    other.require_lease_still_held()
    other.renew_lease()
    other.release_lease()
    assert not place.claim().took_over


def test_one_whose_lease_was_had_and_given_back_meanwhile_is_reported_so(place):
    stopped = place.claim()
    place.clock.go_on(LENGTH)
    place.claim().release_lease()
    with pytest.raises(ClaimedByOtherProcessError, match="another process has had it since"):
        stopped.require_lease_still_held()


def test_a_renewal_that_failed_behind_its_commit_is_found_done(place):
    holder = place.claim()
    place.clock.go_on(LENGTH / 2)
    row = place.table.rows["silver"]
    place.table.rows["silver"] = replace(row, number=row.number + 1)  # written, and the answer was lost
    holder.require_lease_still_held()
    place.clock.go_on(LENGTH / 2 - SECOND)
    holder.require_lease_still_held()


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> timedelta:
    length = timedelta(seconds=0.4)
    monkeypatch.setattr(leases, "LENGTH", length)
    return length


def test_an_idle_holder_renews_by_itself_and_gives_back_at_the_end_also_of_a_failure(settings, short):
    table = Table()

    def work() -> None:
        begun = table.rows["silver"]
        while table.rows["silver"].expires_at < begun.expires_at + 2 * short:
            require_all_leases_still_held(table.identifier)
        assert (read_fencing_token(table.identifier, "silver"), read_fencing_token(table.identifier, "gold")) == (1, 0)
        raise KeyError

    with pytest.raises(KeyError), hold_lease(settings, table, "silver", "runs silver"):
        work()
    assert table.rows["silver"].holder is None
    assert read_fencing_token(table.identifier, "silver") == 0


@pytest.mark.usefixtures("short")
def test_what_fails_since_another_has_the_lease_is_reported_as_that(settings):
    table = Table()

    def work() -> None:
        row = table.rows["silver"]
        table.rows["silver"] = replace(row, number=row.number + 1, claim="another", doing="rebuilds silver")
        before = table.writes
        while table.writes == before:
            time.sleep(0.01)
        raise KeyError

    said = "another process rebuilds silver now"
    with pytest.raises(ClaimedByOtherProcessError, match=said), hold_lease(settings, table, "silver", "runs silver"):
        work()


@pytest.mark.usefixtures("short")
def test_a_table_that_cannot_be_asked_for_a_while_costs_no_lease(settings, caplog):
    table = Table()

    def fail() -> None:
        raise OSError("the store does not answer")

    with hold_lease(settings, table, "silver", "runs silver"):
        table.before_write = fail
        before = table.rows["silver"].number
        while table.rows["silver"].number == before:
            time.sleep(0.01)
        require_all_leases_still_held(table.identifier)
    assert "could not be renewed, and is tried again soon: the store does not answer" in caplog.text


def held(place: Place, on_takeover: Callable[[int], None]) -> AbstractContextManager[None]:
    return hold_lease(place.settings, place.table, "silver", "runs silver", on_takeover)


def tokens_of_takeovers(place: Place) -> list[int]:
    """Acquires the lease and gives it back in order; tokens with which something was called for the holder before."""
    called: list[int] = []
    with held(place, called.append):
        pass
    return called


def test_after_a_holder_that_has_ended_in_order_nothing_is_to_be_retired(place):
    assert tokens_of_takeovers(place) == []
    assert tokens_of_takeovers(place) == []


def test_after_a_holder_that_has_failed_what_it_may_yet_commit_is_to_be_retired_once(place):
    with pytest.raises(KeyboardInterrupt), held(place, lambda _: None):
        raise KeyboardInterrupt
    assert tokens_of_takeovers(place) == [2]
    assert tokens_of_takeovers(place) == []


def test_what_could_not_be_retired_is_to_be_retired_by_the_next_holder(place):
    place.claim()  # and never gives it back; by this process' own clock it has ended long ago

    def fail(token: int) -> None:
        raise OSError(f"the store does not answer {token}")

    with pytest.raises(OSError, match="does not answer 2"), held(place, fail):
        raise AssertionError
    assert tokens_of_takeovers(place) == [3]

"""Joins the events of a split message that concern one session, in the lists to which generated code adds them.

What two parts mean together is defined in `feeds.parts`; here it is applied to `ColumnarEvents`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sessionlake.feeds.code import UnusualMessageError
from sessionlake.feeds.events import SessionEvent
from sessionlake.feeds.feed import EventKind, Feed
from sessionlake.feeds.lists import ColumnarEvents
from sessionlake.feeds.parts import JoinedRowList, join_events_of_parts


@dataclass(frozen=True)
class SplitMessageEventJoiner:
    """Joins the events that generated code has added for the parts of one message.

    Attributes:
        feed: The feed.
        fields: The lists of `ColumnarEvents` that the code has filled for each event, without `message` and `rows`.
        constants: For each rule number, what `list_event_fields_fixed_by_rule` returns for the rule.
    """

    feed: Feed
    fields: tuple[str, ...]
    constants: dict[int, dict[str, Any]]

    def join_events_of_message(
        self, events: ColumnarEvents, rule_numbers: list[int], per_row: list[list[Any]], first_event: int
    ) -> None:
        """Joins the events from index `first_event` on, and the rows of each.

        Args:
            events: The lists. `events.rows` has the number of rows up to each event.
            rule_numbers: The number of the rule of each event.
            per_row: The lists of `events` that the code has filled for each row.
            first_event: Index of the message's first event.

        Raises:
            UnusualError: Only the slow reader can read the message, because parts contradict each other, or because
                the joined event is not as any of their rules says.
        """
        sessions = events.session[first_event:]
        if len(set(sessions)) < len(sessions):
            self._join_events_of_each_session(events, rule_numbers, per_row, first_event)
        if "chain" in self.fields:
            chain_seqs = set(zip(events.chain[first_event:], events.seq[first_event:], strict=True))
            if len(chain_seqs) > len(set(events.chain[first_event:])):
                raise UnusualMessageError
        if self.feed.refuse_repeats:
            start = events.rows[first_event - 1] if first_event else 0
            for end in events.rows[first_event:]:
                if len(set(events.row_id[start:end])) < end - start:
                    raise UnusualMessageError
                start = end

    def _join_events_of_each_session(
        self, events: ColumnarEvents, rule_numbers: list[int], per_row: list[list[Any]], first_event: int
    ) -> None:
        joined: dict[tuple[str, str | None], tuple[SessionEvent, set[int]]] = {}
        for number in range(first_event, len(events.rows)):
            event = self._build_event_at_index(events, rule_numbers[number], number)
            session_and_chain = event.session, event.chain if event.kind is EventKind.IGNORE else None
            before, numbers = joined.get(session_and_chain, (None, set[int]()))
            if (
                before is not None
                and before.ts != event.ts
                and (isinstance(before.ts, str) or isinstance(event.ts, str))
            ):
                raise UnusualMessageError  # the text of a time is checked later, and only one of them is kept
            try:
                found = event if before is None else join_events_of_parts(before, event, self.feed.order.modulo)
            except ValueError:
                raise UnusualMessageError from None
            joined[session_and_chain] = found, numbers | {rule_numbers[number]}
        start = events.rows[first_event - 1] if first_event else 0
        rows: list[Any] = [row for event, _ in joined.values() for row in event.rows]
        if len(rows) < events.rows[-1] - start:
            raise UnusualMessageError  # a snapshot replaces rows of earlier parts, whose texts are not checked yet
        for values in per_row:
            values[start:] = [values[row] for row in rows]
        message = events.message[first_event]
        for some in (events.message, events.rows, rule_numbers, *(getattr(events, name) for name in self.fields)):
            del some[first_event:]
        for event, numbers in joined.values():
            start += len(event.rows)
            events.message.append(message)
            events.rows.append(start)
            rule_numbers.append(self._find_rule_of_joined_event(event, numbers))
            for name in self.fields:
                getattr(events, name).append(getattr(event, name))

    def _build_event_at_index(self, events: ColumnarEvents, rule_number: int, event_index: int) -> SessionEvent:
        """Returns an event of the lists. In place of its rows it has their indices in the lists."""
        fields = self.constants[rule_number] | {name: getattr(events, name)[event_index] for name in self.fields}
        rows: Any = JoinedRowList(range(events.rows[event_index - 1] if event_index else 0, events.rows[event_index]))
        return SessionEvent(**fields | {"kind": EventKind(fields["kind"]), "rows": rows})

    def _find_rule_of_joined_event(self, event: SessionEvent, rule_numbers: set[int]) -> int:
        """Returns the number of a rule whose events have the same kind, restart and link as a joined event."""
        for number in sorted(rule_numbers):
            if all(getattr(event, name) == value for name, value in self.constants[number].items()):
                return number
        raise UnusualMessageError

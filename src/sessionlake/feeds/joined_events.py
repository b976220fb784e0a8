"""Joins the events of a split message that concern one session, in the lists to which generated code adds them.

What two parts mean together is defined in `feeds.parts`; here it is applied to `EventLists`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sessionlake.feeds.code import UnusualError
from sessionlake.feeds.events import SessionEvent
from sessionlake.feeds.feed import EventKind, Feed
from sessionlake.feeds.lists import EventLists
from sessionlake.feeds.parts import RowList, join_parts


@dataclass(frozen=True)
class EventJoiner:
    """Joins the events that generated code has added for the parts of one message.

    Attributes:
        feed: The feed.
        fields: The lists of `EventLists` that the code has filled for each event, without `message` and `rows`.
        constants: For each rule number, what `list_constants_of_rule` returns for the rule.
    """

    feed: Feed
    fields: tuple[str, ...]
    constants: dict[int, dict[str, Any]]

    def join(self, out: EventLists, rules: list[int], per_row: list[list[Any]], first: int) -> None:
        """Joins the events from index `first` on, and the rows of each.

        Args:
            out: The lists. `out.rows` has the number of rows up to each event.
            rules: The number of the rule of each event.
            per_row: The lists of `out` that the code has filled for each row.
            first: Index of the message's first event.

        Raises:
            UnusualError: Only the slow reader can read the message, because parts contradict each other, or because
                the joined event is not as any of their rules says.
        """
        sessions = out.session[first:]
        if len(set(sessions)) < len(sessions):
            self._join_sessions(out, rules, per_row, first)
        if "chain" in self.fields:
            chain_seqs = set(zip(out.chain[first:], out.seq[first:], strict=True))
            if len(chain_seqs) > len(set(out.chain[first:])):
                raise UnusualError
        if self.feed.refuse_repeats:
            start = out.rows[first - 1] if first else 0
            for end in out.rows[first:]:
                if len(set(out.row_id[start:end])) < end - start:
                    raise UnusualError
                start = end

    def _join_sessions(self, out: EventLists, rules: list[int], per_row: list[list[Any]], first: int) -> None:
        joined: dict[tuple[str, str | None], tuple[SessionEvent, set[int]]] = {}
        for number in range(first, len(out.rows)):
            event = self._build_event(out, rules[number], number)
            session_and_chain = event.session, event.chain if event.kind is EventKind.IGNORE else None
            before, numbers = joined.get(session_and_chain, (None, set[int]()))
            if (
                before is not None
                and before.ts != event.ts
                and (isinstance(before.ts, str) or isinstance(event.ts, str))
            ):
                raise UnusualError  # the text of a time is checked later, and only one of them is kept
            try:
                found = event if before is None else join_parts(before, event, self.feed.order.modulo)
            except ValueError:
                raise UnusualError from None
            joined[session_and_chain] = found, numbers | {rules[number]}
        start = out.rows[first - 1] if first else 0
        rows: list[Any] = [row for event, _ in joined.values() for row in event.rows]
        if len(rows) < out.rows[-1] - start:
            raise UnusualError  # a snapshot replaces rows of earlier parts, whose texts are not checked yet
        for values in per_row:
            values[start:] = [values[row] for row in rows]
        message = out.message[first]
        for some in (out.message, out.rows, rules, *(getattr(out, name) for name in self.fields)):
            del some[first:]
        for event, numbers in joined.values():
            start += len(event.rows)
            out.message.append(message)
            out.rows.append(start)
            rules.append(self._find_rule(event, numbers))
            for name in self.fields:
                getattr(out, name).append(getattr(event, name))

    def _build_event(self, out: EventLists, rule: int, number: int) -> SessionEvent:
        """Returns an event of the lists. In place of its rows it has their indices in the lists."""
        fields = self.constants[rule] | {name: getattr(out, name)[number] for name in self.fields}
        rows: Any = RowList(range(out.rows[number - 1] if number else 0, out.rows[number]))
        return SessionEvent(**fields | {"kind": EventKind(fields["kind"]), "rows": rows})

    def _find_rule(self, event: SessionEvent, numbers: set[int]) -> int:
        """Returns the number of a rule whose events have the same kind, restart and link as a joined event."""
        for number in sorted(numbers):
            if all(getattr(event, name) == value for name, value in self.constants[number].items()):
                return number
        raise UnusualError

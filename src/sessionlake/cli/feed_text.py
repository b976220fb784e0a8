"""Prints how feeds read messages: lines for people, or one JSON object a message for programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from sessionlake.cli.feed_trial import SilverTrialJudge
from sessionlake.cli.options import FeedFormat, ShownMessages
from sessionlake.cli.show import convert_to_json_value, write_text
from sessionlake.delta.storage.far_times import convert_ms_to_time, format_time
from sessionlake.feeds.cases import FeedTestDifference
from sessionlake.feeds.events import MessageRefusal, RowDelete, RowUpsert, SessionEvent
from sessionlake.feeds.feed import EventKind
from sessionlake.feeds.lines import MessageOfLine
from sessionlake.feeds.trial import FeedTrial, TrialOutcome, TrialTotals
from sessionlake.visible import escape_invisible, to_json_line

# A snapshot can have 100,000 rows; `--format json` has them all.
_SHOWN_ROWS = 20
_SHOWN_VALUE = 300
_RESCUED = "_rescued"


def print_feed_trial(
    trial: FeedTrial,
    judged: SilverTrialJudge,
    lines: Iterable[MessageOfLine],
    shown: ShownMessages,
    form: FeedFormat,
    try_command: str,
) -> None:
    """Tries messages, and writes the result of each. Writes a summary at the end.

    Args:
        trial: The trial that reads the messages.
        judged: Judges the messages as silver does.
        lines: The messages.
        shown: Which messages to print.
        form: The format. JSON has a last line `{"summary": …}`.
        try_command: The command that tries the same messages again.
    """
    for line, outcome in judged.judge_lines(trial, lines):
        is_faulty = outcome.is_refused or bool(outcome.findings)
        if shown is ShownMessages.ALL or (shown is ShownMessages.REFUSED and is_faulty):
            if form is FeedFormat.JSON:
                write_text(to_json_line(convert_to_json_value(_create_json_object_of_outcome(line, outcome))))
            else:
                for text in _format_outcome_lines(line, outcome):
                    write_text(text)
    if form is FeedFormat.JSON:
        write_text(to_json_line({"summary": _create_json_object_of_summary(trial, judged)}))
    else:
        for text in _format_summary_lines(trial, judged, try_command):
            write_text(text)


def print_feed_test_results(results: Sequence[tuple[str, int, Sequence[FeedTestDifference]]], form: FeedFormat) -> None:
    """Prints the results of `feed test`: for each file its differences, then a line with counts.

    Args:
        results: For each file its name, its number of messages, and the differences from what is expected.
        form: The output format. As JSON, each file is one object.
    """
    for file, frames, differences in results:
        if form is FeedFormat.JSON:
            found = [
                {"where": one.where, "what": one.what, "expected": one.expected, "actual": one.actual}
                for one in differences
            ]
            write_text(to_json_line(convert_to_json_value({"file": file, "frames": frames, "differences": found})))
            continue
        for text in (line for one in differences for line in one.format_lines()):
            write_text(text)
        write_text(
            f"{file}: frames {frames:,}, {f'differences {len(differences):,}' if differences else 'as expected'}"
        )


# -- one message


def _describe_place_of_message(line: MessageOfLine) -> str:
    record = line.record
    where = f"line {line.number}, " if line.number else ""
    offset = "" if line.number else f", partition {record.partition}, offset {record.offset}"
    return f"{where}topic {record.topic}{offset}"


def _format_outcome_lines(line: MessageOfLine, outcome: TrialOutcome) -> Iterator[str]:
    place, found = _describe_place_of_message(line), outcome.found
    if outcome.feed is None or found is None:
        yield f"{place}: no feed matches this topic"
        return
    if isinstance(found, MessageRefusal):
        at = f" at {found.path}" if found.path else ""
        yield f"{place}: refused by feed {outcome.feed.name}: {found.reason}{at}"
        yield f"  why      {found.why}"
        yield f"  message  {_format_first_bytes_of_message(outcome.record.value)}"
        return
    rules = " and ".join(f"rule {number}" for number in found.rules) or "decoder"
    ignored = ": ignored" if all(event.kind is EventKind.IGNORE for event in found.events) else ""
    yield f"{place}: feed {outcome.feed.name}, {rules}{ignored}"
    for event in found.events:
        if event.kind is not EventKind.IGNORE:
            reason = outcome.quarantined.get(event.session)
            yield f"  {_format_feed_event(event)}{f'; in quarantine: {reason}' if reason else ''}"
            yield from () if reason else _format_row_lines(event.rows)
    for text in outcome.findings:
        yield f"  {text}"


def _format_feed_event(event: SessionEvent) -> str:
    parts = [f"{event.kind} of session {event.session}"]
    if event.seq is not None:
        after = "any" if event.after is None else event.after
        parts.append(f"seq {event.seq} (after {after})")
    if event.chain is not None:
        parts.append(f"chain {event.chain}")
    if event.restart:
        parts.append("the order starts again")
    parts.append("no time" if event.ts == -1 else format_time(convert_ms_to_time(event.ts)))
    if event.scope:
        parts.append(
            "replaces only " + ", ".join(f"{name} = {_format_cell(value)}" for name, value in event.scope.items())
        )
    return ", ".join(parts)


def _format_row_lines(rows: Sequence[RowUpsert | RowDelete]) -> Iterator[str]:
    """Yields the changed rows as lines of a text table, with one column for each column that a change sets."""
    shown = rows[:_SHOWN_ROWS]
    if not shown:
        return
    names = list(dict.fromkeys(name for row in shown for name in _get_values_set_by_row(row)))
    table = [["change", "row_id", *names]]
    for row in shown:
        values = _get_values_set_by_row(row)
        change = "delete" if isinstance(row, RowDelete) else "upsert"
        table.append([change, row.row_id, *(_format_cell(values[name]) if name in values else "" for name in names)])
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for cells in table:
        padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        yield f"    {'  '.join(padded)}".rstrip()
    if len(rows) > len(shown):
        yield f"    and {len(rows) - len(shown):,} more: --format json lists all"


def _get_values_set_by_row(row: RowUpsert | RowDelete) -> dict[str, Any]:
    if isinstance(row, RowDelete):
        return {}
    return row.values if row.rescued is None else {**row.values, _RESCUED: row.rescued}


def _format_cell(value: Any) -> str:
    simple = convert_to_json_value(value)
    if simple is None:
        return "null"
    return escape_invisible(simple if isinstance(simple, str) else to_json_line(simple)).replace("\n", "\\n")


def _format_first_bytes_of_message(value: bytes | None) -> str:
    if value is None:
        return "a tombstone: it has no value"
    text = value[: _SHOWN_VALUE * 4].decode(errors="replace").replace("\n", "\\n")
    return text if len(text) <= _SHOWN_VALUE else f"{text[:_SHOWN_VALUE]}… ({len(value):,} bytes)"


def _create_json_object_of_outcome(line: MessageOfLine, outcome: TrialOutcome) -> dict[str, Any]:
    record, found = outcome.record, outcome.found
    place: dict[str, Any] = {"line": line.number} if line.number else {}
    place |= {"topic": record.topic, "partition": record.partition, "offset": record.offset}
    place["feed"] = None if outcome.feed is None else outcome.feed.name
    if isinstance(found, MessageRefusal):
        refused = {"reason": found.reason, "path": found.path, "why": found.why}
        return place | {"refused": refused | {"message": _format_first_bytes_of_message(record.value)}}
    if found is None:
        return place | {"refused": {"reason": "no_feed", "path": "", "why": "no feed matches this topic"}}
    events = [
        _create_json_object_of_event(event) | {"quarantine": outcome.quarantined.get(event.session)}
        for event in found.events
        if event.kind is not EventKind.IGNORE
    ]
    return place | {"rules": list(found.rules), "events": events, "findings": list(outcome.findings)}


def _create_json_object_of_event(event: SessionEvent) -> dict[str, Any]:
    rows = [
        {"change": "delete", "row_id": row.row_id, "key": list(row.key)}
        if isinstance(row, RowDelete)
        else {"change": "upsert", "row_id": row.row_id, "set": row.values, _RESCUED: row.rescued}
        for row in event.rows
    ]
    return {
        "session": event.session, "kind": event.kind, "ts": event.ts, "seq": event.seq, "after": event.after,
        "chain": event.chain, "restart": event.restart, "scope": event.scope, "rows": rows,
    }  # fmt: skip


# -- the summary


def _create_json_object_of_summary(trial: FeedTrial, judged: SilverTrialJudge) -> dict[str, Any]:
    totals = trial.totals
    return {
        "messages": totals.messages,
        "ignored": totals.ignored,
        "rules": [{"feed": feed, "rule": rule, "messages": n} for (feed, rule), n in sorted(totals.rules.items())],
        "refused": [{"feed": feed, "reason": why, "messages": n} for (feed, why), n in sorted(totals.refused.items())],
        "no_feed": dict(totals.unmatched),
        "sessions": len(judged.silver.sessions),
        "rows": sum(map(len, judged.silver.rows.values())),
        "quarantine": dict(judged.silver.reasons),
        "broken": judged.list_broken_sessions(),
        "stopped": judged.stopped,
        "gaps": totals.gaps,
        "duplicates": totals.duplicates,
        "before_snapshot": totals.orphans,
        "held": totals.held,
        "waiting": trial.count_of_held_messages,
        "checks": totals.checks,
        "checks_failed": totals.checks_failed,
        "presence_failed": totals.presence_failed,
        "tables_followed": totals.followed or totals.messages,
    }


def _format_summary_lines(trial: FeedTrial, judged: SilverTrialJudge, try_command: str) -> Iterator[str]:
    totals, silver = trial.totals, judged.silver
    refused = totals.refused.total() + totals.unmatched.total()
    read = totals.messages - refused - totals.ignored
    yield f"{totals.messages:,} messages: {read:,} read, {totals.ignored:,} ignored, {refused:,} refused"
    for (feed, number), count in sorted(totals.rules.items()):
        yield f"  feed {feed}, rule {number}{_describe_message_kind_of_rule(trial, feed, number)}: {count:,}"
    for (feed, reason), count in sorted(totals.refused.items()):
        yield f"  feed {feed}, refused as {reason}: {count:,}"
    for topic, count in sorted(totals.unmatched.items()):
        yield f"  topic {topic}, which no feed matches: {count:,}"
    rows = sum(map(len, silver.rows.values()))
    yield f"  tables: sessions {len(silver.sessions):,}, rows {rows:,}{_describe_last_message_in_tables(totals)}"
    yield from _format_judgement_lines(judged)
    yield f"  order: gaps {totals.gaps:,}, duplicates {totals.duplicates:,}"
    if totals.checks:
        yield f"  checksums: right {totals.checks - totals.checks_failed:,}, wrong {totals.checks_failed:,}"
    if totals.presence_failed:
        yield f"  expect: {totals.presence_failed:,} failed"
    if totals.held:
        still_held = trial.count_of_held_messages
        yield f"  held back until the first snapshot of their session: {totals.held:,}; {still_held:,} still wait"
    if totals.orphans:
        yield (
            f"  updates before the first snapshot of their session: {totals.orphans:,}; they go to quarantine unless "
            "the feed has `starts_with: anything`, or holds more of them"
        )
    yield f"next: {_describe_next_command(totals, try_command)}"


def _format_judgement_lines(judged: SilverTrialJudge) -> Iterator[str]:
    """Yields which messages are in quarantine, which sessions are broken, and where silver stops."""
    for reason, count in sorted(judged.silver.reasons.items()):
        yield f"  quarantine, {reason}: {count:,}"
    broken = judged.list_broken_sessions()
    for one in broken[:_SHOWN_ROWS]:
        yield f"  broken: {_describe_session_break(one)}"
    if len(broken) > _SHOWN_ROWS:
        yield f"  and {len(broken) - _SHOWN_ROWS:,} more broken sessions: --format json lists all"
    if judged.stopped is not None:
        yield (
            f"  silver stops, as `on_violation: fail` says: {_describe_session_break(judged.stopped)}. The tables are "
            "as before this message, until `sessionlake resolve` decides about it"
        )


def _describe_session_break(found: Mapping[str, Any]) -> str:
    where = f"topic {found['topic']}, partition {found['partition']}, offset {found['offset']}"
    seqs = [f"{name} seq {found[key]}" for name, key in (("expected", "expected_seq"), ("found", "actual_seq"))
            if found[key] is not None]  # fmt: skip
    return ", ".join([f"session {found['session_id']} at {where}: {found['event']}", *seqs])


def _describe_message_kind_of_rule(trial: FeedTrial, name: str, number: int) -> str:
    feed = trial.get_feed(name)
    kind = next((rule.kind for rule in feed.rules if rule.number == number), None)
    return "" if kind is None else f" ({kind})"


def _describe_last_message_in_tables(totals: TrialTotals) -> str:
    return "" if totals.followed is None else f", up to message {totals.followed:,}; then there were too many"


def _describe_next_command(totals: TrialTotals, try_command: str) -> str:
    if not totals.messages:
        return "send messages, or name another file; there were none"
    if totals.unmatched.total() == totals.messages:
        return f"correct `topics` of the feed, then run `{try_command}` again"
    if totals.count_of_failures:
        return f"correct the feed, then run `{try_command} --show refused`"
    return "`sessionlake run all` reads the topic with this feed"

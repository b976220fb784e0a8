"""`sessionlake trace`: prints one message's path through the lake, as lines for people or one object for programs."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any, TextIO

from sessionlake.cli.show import (
    OutputFormat,
    create_console,
    create_escaped_rich_text,
    create_terminal_table,
    show_rows,
)
from sessionlake.delta.storage.far_times import format_time
from sessionlake.history.fate import MessageFate
from sessionlake.history.traced import BatchCommit, MessageTrace, SilverMerge, TracedMessagePart
from sessionlake.settings.section import Integrity

if TYPE_CHECKING:
    from rich.console import Console

    from sessionlake.history.content import FeedReadingExplanation

# A snapshot can make 100,000 row changes; `--format json` has them all.
_SHOWN_CHANGES = 20
_ABSENT = ""


def show_trace(trace: MessageTrace, form: OutputFormat, out: TextIO | None = None) -> None:
    """Prints a trace. JSON is one nested object. CSV has a column for each nested field, such as `silver.batch`."""
    out = out or sys.stdout
    if form is OutputFormat.TABLE:
        _print_trace(trace, out)
        return
    parts = asdict(trace)
    if form is OutputFormat.CSV:
        parts = dict(_flatten_trace_columns(parts))
    show_rows(list(parts), [list(parts.values())], form, out)


def _flatten_trace_columns(parts: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields the CSV columns of a trace as name and value. The names are the same for every message."""
    for name, value in parts.items():
        part = dict.fromkeys(item.name for item in fields(SilverMerge)) if name == "tables" and value is None else value
        if isinstance(part, dict) and name != "session":
            yield from ((f"{name}.{key}", item) for key, item in part.items())
        else:
            yield name, value


def _print_trace(trace: MessageTrace, out: TextIO) -> None:
    from rich.table import Table

    console = create_console(out)
    place = f"topic {trace.topic}, partition {trace.partition}, offset {trace.offset}: "
    console.print(create_escaped_rich_text(place).append_text(create_escaped_rich_text(trace.judgement.fate, "bold")))
    grid = Table.grid(padding=(0, 2))
    for name, text in _describe_trace(trace):
        grid.add_row(create_escaped_rich_text(f"  {name}", "dim"), create_escaped_rich_text(text))
    console.print(grid)
    _print_changed_rows(console, trace.changes)
    for number, part in enumerate(trace.other_parts, 2):
        what = f"part {number} of {len(trace.other_parts) + 1}, {part.type}, seq {part.seq}: "
        console.print(create_escaped_rich_text(what).append_text(create_escaped_rich_text(part.judgement.fate, "bold")))
        grid = Table.grid(padding=(0, 2))
        for name, text in _describe_outcome_in_silver(trace, part):
            grid.add_row(create_escaped_rich_text(f"  {name}", "dim"), create_escaped_rich_text(text))
        console.print(grid)
        _print_changed_rows(console, part.changes)


def _print_changed_rows(console: Console, changes: list[dict[str, Any]]) -> None:
    if changes:
        console.print(create_terminal_table(*_build_table_of_changed_rows(changes[:_SHOWN_CHANGES])))
    if len(changes) > _SHOWN_CHANGES:
        console.print(f"and {len(changes) - _SHOWN_CHANGES:,} more: --format json lists all")


def _describe_trace(trace: MessageTrace) -> Iterator[tuple[str, str]]:
    yield "message", _describe_message(trace)
    if trace.message.reading is not None:
        yield "feed", _describe_reading_by_feed(trace.message.reading)
    yield "bronze", _describe_batch_commit(trace.bronze)
    yield "silver", _describe_batch_commit(trace.silver)
    yield from _describe_outcome_in_silver(trace, trace)


def _describe_outcome_in_silver(
    trace: MessageTrace, part: MessageTrace | TracedMessagePart
) -> Iterator[tuple[str, str]]:
    """Yields label and text of the lines that say what silver did with a part of a message.

    Args:
        trace: The trace of the message.
        part: The part. The trace itself stands for the first part.
    """
    yield "judgement", _describe_judgement(trace, part)
    if part.tables:
        yield "tables", _describe_silver_merge(part.tables)
    elif part.changes:
        yield "tables", "not merged yet: `sessionlake run silver` merges it"
    if part.session:
        yield "session", _describe_session(part.session)


def _describe_reading_by_feed(reading: FeedReadingExplanation) -> str:
    if reading.why is not None:
        return f"{reading.feed} refuses it{f' at {reading.path}' if reading.path else ''}: {reading.why}"
    rules = ", ".join(map(str, reading.rules))
    return f"{reading.feed}, rule {rules}" if rules else f"{reading.feed}, decoder class"


def _describe_message(trace: MessageTrace) -> str:
    message = trace.message
    kind = f"{message.type}, seq {message.seq}" if message.type else "malformed"
    if trace.judgement.fate is MessageFate.ERASED:
        kind = "erased with its session"
    elif trace.judgement.fate is MessageFate.IGNORED:
        kind = "without an event"
    times = f"Kafka time {format_time(message.timestamp)}"
    ingested = f", ingested {format_time(message.ingested_at)}" if message.ingested_at else ""
    erased = "; the parts of forgotten sessions are erased" if message.has_erased_parts else ""
    return f"{kind}, {message.value_bytes:,} bytes, {times}{ingested}{erased}"


def _describe_batch_commit(commit: BatchCommit) -> str:
    if commit.recovered:
        return (
            f"batch {commit.batch} or an earlier one, committed before {format_time(commit.committed_at)}, when the "
            "ledger was recovered"
        )
    return f"batch {commit.batch}, committed {format_time(commit.committed_at)}{_describe_written_tables(commit)}"


def _describe_silver_merge(merge: SilverMerge) -> str:
    first, last = merge.first_batch, merge.last_batch
    merged = f"batch {last}" if first == last else f"batches {first} to {last}"
    return f"silver {merged} merged, committed {format_time(merge.committed_at)}{_describe_written_tables(merge)}"


def _describe_written_tables(commit: BatchCommit) -> str:
    """Returns the tables that a commit wrote, with their versions, as in `: sessions@v7`; empty if it wrote none."""
    tables = ", ".join(f"{table.split('.')[1]}@v{version}" for table, version in commit.versions.items())
    return f": {tables}" if tables else ""


def _describe_judgement(trace: MessageTrace, part: MessageTrace | TracedMessagePart) -> str:
    judgement = part.judgement
    own_event = next(
        (event for event in judgement.events if event["event"] in {judgement.reason, judgement.fate}), None
    )
    parts = [_describe_fate_of_message_part(part, own_event)]
    parts += [_describe_integrity_event(event) for event in judgement.events if event is not own_event]
    if judgement.broken_by:
        parts.append(
            f"broken at offset {judgement.broken_by['offset']} by {_describe_integrity_event(judgement.broken_by)}"
        )
    if judgement.fate is MessageFate.APPLIED and not part.changes:
        parts.append("it changes no rows")
    if judgement.batch is not None and judgement.batch != trace.silver.batch:
        when = f", committed {format_time(judgement.committed_at)}" if judgement.committed_at else ""
        parts.append(f"held back until batch {judgement.batch}{when}")
    return "; ".join(parts)


def _describe_fate_of_message_part(part: MessageTrace | TracedMessagePart, own_event: Mapping[str, Any] | None) -> str:
    judgement = part.judgement
    if judgement.fate is MessageFate.HELD:
        is_by_time = judgement.integrity == Integrity.WINDOW
        until = "its session's watermark passes its event time" if is_by_time else "a snapshot of its session arrives"
        return f"held back until {until}"
    kind = part.message.type if isinstance(part, MessageTrace) else part.type
    by = f" (class {judgement.integrity})" if kind else ""
    reason = judgement.reason if judgement.fate is MessageFate.QUARANTINED else None
    seqs = _describe_expected_and_actual_seq(own_event) if own_event and judgement.fate is not MessageFate.LATE else ""
    why = ", ".join(part for part in (reason, seqs) if part)
    return f"{judgement.fate}{by}{f': {why}' if why else ''}"


def _describe_integrity_event(event: Mapping[str, Any]) -> str:
    seqs = _describe_expected_and_actual_seq(event)
    return f"{event['event']} ({event['action']}){f', {seqs}' if seqs else ''}"


def _describe_expected_and_actual_seq(event: Mapping[str, Any]) -> str:
    return "" if event["expected_seq"] is None else f"expected seq {event['expected_seq']}, got {event['actual_seq']}"


def _describe_session(session: Mapping[str, Any]) -> str:
    counts = [f"{name} {session[name]:,}" for name in ("messages", "duplicates", "gaps", "late") if session[name]]
    return ", ".join([session["session_id"], session["status"], f"next seq {session['next_seq']}", *counts])


def _build_table_of_changed_rows(changes: list[dict[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    columns = list(dict.fromkeys(name for change in changes for name in change["set"]))
    more = [n for n in ("_rescued",) if any(change[n] is not None for change in changes)]
    rest = [*more, "_epoch", "_seq", "_position"]
    rows = [
        [change["change"], change["row_id"] or _ABSENT, *(change["set"].get(name, _ABSENT) for name in columns)]
        + [change[name] for name in rest]
        for change in changes
    ]
    return ["change", "row_id", *columns, *rest], rows

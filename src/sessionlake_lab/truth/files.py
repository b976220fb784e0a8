"""Writes and reads the ground truth, as one compressed JSON-lines file per table, and computes hashes of tables."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sessionlake.errors import LakeError
from sessionlake_lab.truth.model import ExpectedTables, Row, SessionKey

_FORMAT = 4
_BYTES = ("key", "value")


def hash_session_tables(tables: ExpectedTables) -> dict[SessionKey, str]:
    """Returns a hash of each session's table. Equal tables have equal hashes."""
    return {key: hash_session_table(rows) for key, rows in tables.session_rows.items()}


def hash_session_table(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns the hash of one session's table, whatever the order of its rows and columns.

    Args:
        rows: For each row id the columns of `ExpectedTables.session_rows`, without topic, partition, session id and
            row id.
    """
    return hashlib.sha256(json.dumps(rows, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def write_expected_tables(tables: ExpectedTables, folder: Path) -> None:
    """Writes `<folder>/<table>.jsonl.gz` for every table, and replaces existing files."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_json_lines(folder / "format.jsonl.gz", [_FORMAT])
    _write_json_lines(folder / "session_rows.jsonl.gz", [[*key, rows] for key, rows in tables.session_rows.items()])
    _write_json_lines(folder / "sessions.jsonl.gz", list(tables.sessions.values()))
    _write_json_lines(folder / "counts.jsonl.gz", [[*where, counts] for where, counts in tables.counts.items()])
    _write_json_lines(folder / "session_changes.jsonl.gz", tables.session_changes)
    _write_json_lines(folder / "session_cuts.jsonl.gz", tables.session_cuts)
    _write_json_lines(folder / "session_snapshots.jsonl.gz", tables.session_snapshots)
    _write_json_lines(folder / "integrity_events.jsonl.gz", tables.integrity_events)
    _write_json_lines(folder / "quarantine.jsonl.gz", [_encode_key_and_value(message) for message in tables.quarantine])


def read_expected_tables(folder: Path) -> ExpectedTables:
    """Reads the tables that `write_expected_tables` wrote into the folder.

    Raises:
        LakeError: A file is missing, or has another format.
    """
    found = _read_json_lines(folder / "format.jsonl.gz")
    if found != [_FORMAT]:
        raise LakeError(
            f"ground truth in {folder}: found format {found}, expected [{_FORMAT}]", fix="Simulate again to write it"
        )
    rows, sessions = (_read_json_lines(folder / f"{name}.jsonl.gz") for name in ("session_rows", "sessions"))
    return ExpectedTables(
        session_rows={(topic, partition, session): held for topic, partition, session, held in rows},
        sessions={(row["topic"], row["partition"], row["session_id"]): row for row in sessions},
        counts={
            (topic, partition): counts for topic, partition, counts in _read_json_lines(folder / "counts.jsonl.gz")
        },
        session_changes=_read_json_lines(folder / "session_changes.jsonl.gz"),
        session_cuts=_read_json_lines(folder / "session_cuts.jsonl.gz"),
        session_snapshots=_read_json_lines(folder / "session_snapshots.jsonl.gz"),
        integrity_events=_read_json_lines(folder / "integrity_events.jsonl.gz"),
        quarantine=[_decode_key_and_value(message) for message in _read_json_lines(folder / "quarantine.jsonl.gz")],
    )


def _write_json_lines(file: Path, lines: list[Any]) -> None:
    with gzip.open(file, "wt", compresslevel=1, encoding="utf-8") as out:
        out.writelines(f"{json.dumps(line, separators=(',', ':'))}\n" for line in lines)


def _read_json_lines(file: Path) -> list[Any]:
    try:
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            return [json.loads(line) for line in lines]
    except (OSError, EOFError, ValueError) as error:
        raise LakeError(f"ground truth {file} cannot be read ({error})", fix="Simulate again to write it") from None


def _encode_key_and_value(message: Row) -> Row:
    """Returns a quarantined message as JSON can hold it: key and value, which may be any bytes, in base64."""
    return {
        **message,
        **{name: base64.b64encode(message[name]).decode() for name in _BYTES if message[name] is not None},
    }


def _decode_key_and_value(message: Row) -> Row:
    """Returns a quarantined message whose key and value, read from JSON, are bytes again."""
    return {**message, **{name: base64.b64decode(message[name]) for name in _BYTES if message[name] is not None}}

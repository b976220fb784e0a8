"""Reads commits from the log of a table in a folder."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sessionlake.delta.storage.commits import NO_COMMIT, LoggedCommit, TableCommit

_CHANGES = re.compile(rb'"dataChange":\s*true')


def read_last_commit(folder: Path) -> TableCommit:
    """Returns version and number of written rows of the table's latest commit; `NO_COMMIT` without a table."""
    newest = max(_list_commit_files(folder), default=None)
    return NO_COMMIT if newest is None else read_commit_file(newest)


def read_latest_version(folder: Path) -> int:
    """Returns the version of the table's latest commit."""
    return max((int(entry.stem) for entry in _list_commit_files(folder)), default=NO_COMMIT.version)


def read_latest_commits(folder: Path, count: int) -> list[LoggedCommit]:
    """Returns the latest `count` commits, oldest first; fewer if the log has fewer."""
    return [_read_logged_commit(file) for file in sorted(_list_commit_files(folder))[-count:]]


def read_commit_time(folder: Path, version: int) -> float | None:
    """Returns the time at which a version was committed, in seconds since 1970; None if its log file does not exist."""
    try:
        return (folder / "_delta_log" / f"{version:020}.json").stat().st_mtime
    except FileNotFoundError:
        return None


def read_commit_file(file: Path) -> TableCommit:
    """Returns a commit's version and its number of written rows, read from its log file.

    If the commit has no metrics, the rows of the added files are counted. The number is 0 if the commit also removes
    files, because it then only moved rows.

    Args:
        file: path of the log file, as in `_delta_log/00000000000000000001.json`.
    """
    # Splits bytes, not text: Unicode's line separators may occur inside a line.
    actions = [json.loads(line) for line in file.read_bytes().splitlines()]
    info: dict[str, Any] = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
    if info.get("operationMetrics"):
        return TableCommit.from_metrics(int(file.stem), info["operationMetrics"])
    if any("remove" in action for action in actions):
        return TableCommit(int(file.stem), 0)
    added = (action["add"] for action in actions if action.get("add", {}).get("dataChange"))
    stats = (json.loads(add["stats"]) for add in added if add.get("stats"))
    return TableCommit(int(file.stem), sum(stat["numRecords"] for stat in stats))


def _list_commit_files(folder: Path) -> Iterator[Path]:
    return (file for file in (folder / "_delta_log").glob("*.json") if file.stem.isdigit())


def _read_logged_commit(file: Path) -> LoggedCommit:
    content = file.read_bytes()
    infos = (json.loads(line) for line in content.split(b"\n") if b'"commitInfo"' in line)
    info: dict[str, Any] = next((line["commitInfo"] for line in infos if "commitInfo" in line), {})
    operation, parameters = info.get("operation", ""), info.get("operationParameters") or {}
    return LoggedCommit(int(file.stem), operation, parameters, _CHANGES.search(content) is not None)

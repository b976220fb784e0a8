"""The files of a table's version, according to the log in its folder (Delta's protocol, "Actions")."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta, tzinfo
from decimal import Decimal
from functools import cached_property
from operator import le, lt
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.json import decode

from sessionlake.delta.folders.deletion_vectors import read_vector, vector_file
from sessionlake.delta.folders.file_statistics import encode, parse
from sessionlake.errors import LakeError
from sessionlake.local.paths import file_of, path_of
from sessionlake.protocol.types import Int64s

if TYPE_CHECKING:
    from deltalake import DeltaTable

Action = dict[str, Any]
_HALF_LISTED = "is newer than log segment version"
_ATTEMPTS = 20
_PAUSE_SECONDS = 0.01
_CUT = timedelta(milliseconds=1)  # less than that is left out of a time in statistics, even of the greatest


def open_table(folder: Path, version: int | None = None) -> DeltaTable:
    """Opens the table in a folder with delta-rs, at its latest version or at this one.

    While a commit is being written, a listing of the log may show its checksum but not the commit. The next attempt
    sees both.
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    for _ in range(_ATTEMPTS - 1):
        try:
            return DeltaTable(folder, version=version)
        except DeltaError as error:
            if _HALF_LISTED not in str(error):
                raise
            time.sleep(_PAUSE_SECONDS)
    return DeltaTable(folder, version=version)


@dataclass(frozen=True, eq=False)
class TableFile:
    """A file of a table.

    Attributes:
        folder: the table's.
        add: the log's `add` action for it.
        stats: its statistics, which include the number of rows.
        deleted_rows: numbers of the rows that are deleted, ascending.
    """

    folder: Path
    add: Action
    stats: Action
    deleted_rows: Int64s

    @cached_property
    def path(self) -> Path:
        """The file's full path."""
        return file_of(self.folder, self.add["path"])

    @property
    def key(self) -> tuple[str, str]:
        """What identifies the file in a version: the same file with another deletion vector is a different one."""
        return file_key(self.add)

    @property
    def vector(self) -> Path | None:
        """The file that has its deletion vector; None if it has none, or the log itself has it."""
        vector = self.add.get("deletionVector")
        return vector_file(self.folder, vector) if vector else None

    @property
    def row_count(self) -> int:
        """The number of its rows, including deleted ones."""
        return int(self.stats["numRecords"])

    def may_have(self, ends: Mapping[str, tuple[Any, Any]], *, between: bool = False) -> bool:
        """True unless its statistics rule out a row with values from these ends to the others; None stands for no end.

        Args:
            between: whether the ends themselves are not meant.
        """
        least, most = self.stats.get("minValues", {}), self.stats.get("maxValues", {})
        apart = le if between else lt
        return not any(_apart(low, high, least.get(name), most.get(name), apart) for name, (low, high) in ends.items())


def _apart(low: Any, high: Any, least: Any, most: Any, apart: Callable[[Any, Any], Any]) -> bool:
    """True if nothing from one value to another, of which one may be None, is between those of a file's statistics."""
    end = low if high is None else high
    try:
        if isinstance(end, datetime):
            least, most = (_moment(text, end.tzinfo) for text in (least, most))
            most += _CUT
        elif isinstance(end, date):
            least, most = date.fromisoformat(least), date.fromisoformat(most)
        elif isinstance(end, float):
            least, most = float(least), float(most)
    except (TypeError, ValueError, OverflowError):
        return False
    # Of decimals, not every writer tells all digits.
    known = type(least) is type(most) is type(end) and not isinstance(end, Decimal)
    return bool(known and ((high is not None and apart(high, least)) or (low is not None and apart(most, low))))


def _moment(text: str, zone: tzinfo | None) -> datetime:
    moment = datetime.fromisoformat(text)
    if zone is None or moment.tzinfo is None:
        return moment.replace(tzinfo=zone)
    return moment


def live_files(delta: DeltaTable, *, read_vectors: bool = True) -> list[TableFile]:
    """Returns the files of the table's version.

    Args:
        read_vectors: False to leave deletion vectors unread: deleted rows are then unknown, and files may be missing.

    Raises:
        LakeError: a deletion vector does not match the log.
    """
    folder = folder_of(delta)
    adds = list(read_add_actions(folder, delta.version()))
    gone = _gone(delta, folder, adds) if read_vectors else {}
    found, none = list[TableFile](), np.empty(0, np.int64)
    for add in adds:
        stats = parse(add.get("stats"))
        file = TableFile(folder, add, stats, gone.get(file_of(folder, add["path"]), none))
        if read_vectors and len(file.deleted_rows) != (add.get("deletionVector") or {}).get("cardinality", 0):
            raise LakeError(f"{file.path}: {len(file.deleted_rows)} rows are marked, and the log says otherwise")
        if read_vectors and not isinstance(stats.get("numRecords"), int):
            stats["numRecords"] = pq.read_metadata(file.path).num_rows
        found.append(file)
    return found


def _gone(delta: DeltaTable, folder: Path, adds: Iterable[Action]) -> dict[Path, Int64s]:
    """The rows that vectors mark, by file; read by delta-rs, a flag for each row there is, if others wrote some."""
    marked = [add for add in adds if add.get("deletionVector")]
    own = {file_of(folder, add["path"]): read_vector(folder, add["deletionVector"]) for add in marked}
    read = {path: rows for path, rows in own.items() if rows is not None}
    if len(read) < len(marked):
        vectors = pa.table(delta.deletion_vectors())
        for url, kept in zip(vectors["filepath"].to_pylist(), vectors["selection_vector"], strict=True):
            read[path_of(url)] = np.flatnonzero(~kept.values.to_numpy(zero_copy_only=False))
    return read


def folder_of(delta: DeltaTable) -> Path:
    """Returns the table's folder."""
    return path_of(delta.table_uri)


def read_add_actions(folder: Path, version: int) -> Iterable[Action]:
    """Returns the `add` action of each file of a version."""
    log, found = folder / "_delta_log", dict[tuple[str, str], Action]()
    checkpoints = (file.name.partition(".") for file in log.glob("*.checkpoint.parquet") if file.is_file())
    base = max((int(n) for n, _, rest in checkpoints if rest == "checkpoint.parquet" and int(n) <= version), default=-1)
    if base >= 0:
        held = pq.read_table(log / f"{base:020}.checkpoint.parquet", columns=["add"])["add"]
        adds = (_as_json(add) for add in held.drop_null().to_pylist() if add["path"] is not None)
        found = {file_key(add): add for add in adds}
    for number in range(base + 1, version + 1):
        with (log / f"{number:020}.json").open("rb") as lines:
            actions = [decode(line) for line in lines]
        for gone in (action["remove"] for action in actions if "remove" in action):
            found.pop(file_key(gone), None)
        found |= {file_key(action["add"]): action["add"] for action in actions if "add" in action}
    return found.values()


def file_key(action: Action) -> tuple[str, str]:
    """Returns what identifies a file in an `add` or `remove`: its path and its deletion vector, if any."""
    vector = action.get("deletionVector") or {}
    return action["path"], "".join(str(vector.get(name, "")) for name in ("storageType", "pathOrInlineDv", "offset"))


def _as_json(add: Action) -> Action:
    """An `add` of a checkpoint as a commit has it."""
    names = ("path", "size", "modificationTime")
    vector = {name: value for name, value in (add.get("deletionVector") or {}).items() if value is not None}
    known = {name: add[name] for name in names} | {"stats": _stats_of(add)}
    return known | ({"deletionVector": vector} if vector else {})


def _stats_of(add: Action) -> str | None:
    """The statistics in a checkpoint's `add`; if it has them as columns alone, the number of rows; None if neither.

    A table's properties `delta.checkpoint.writeStatsAsJson` and `…AsStruct` say which there are.
    """
    if (stats := add.get("stats")) is not None:
        return str(stats)
    rows = (add.get("stats_parsed") or {}).get("numRecords")
    return None if rows is None else encode({"numRecords": rows}).decode()

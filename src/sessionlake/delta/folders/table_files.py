"""Opens tables in folders, and reads from the log which files a version has (Delta's protocol, "Actions")."""

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

from sessionlake.delta.folders.deletion_vectors import build_deletion_vector_path, read_deletion_vector
from sessionlake.delta.folders.file_statistics import encode_log_json, parse_statistics
from sessionlake.errors import LakeError
from sessionlake.local.paths import convert_uri_to_path, resolve_path_of_delta_log
from sessionlake.protocol.types import Int64s

if TYPE_CHECKING:
    from deltalake import DeltaTable

Action = dict[str, Any]
_HALF_LISTED = "is newer than log segment version"
_ATTEMPTS = 20
_PAUSE_SECONDS = 0.01
_CUT = timedelta(milliseconds=1)  # statistics may cut times to milliseconds, so a maximum may be up to this too low


def open_table(folder: Path, version: int | None = None) -> DeltaTable:
    """Opens the table in a folder with delta-rs.

    If the log is read while another process commits, its listing may have the commit's checksum but not the commit.
    Then tries again.

    Args:
        folder: the table's folder.
        version: the version to open; None for the latest.
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
    """A data file of one version of a table.

    Attributes:
        folder: the table's folder.
        add: the file's `add` action in Delta's log.
        stats: the file's statistics, as a dictionary; `numRecords` is the number of rows.
        deleted_rows: numbers of the rows that the deletion vector marks as deleted, ascending.
    """

    folder: Path
    add: Action
    stats: Action
    deleted_rows: Int64s

    @cached_property
    def full_path(self) -> Path:
        """The data file's full path."""
        return resolve_path_of_delta_log(self.folder, self.add["path"])

    @property
    def log_key(self) -> tuple[str, str]:
        """The file's key in Delta's log: its path, and the unique id of its deletion vector ("" if it has none)."""
        return build_log_key_of_file(self.add)

    @property
    def vector_path(self) -> Path | None:
        """Full path of the file that stores the deletion vector of this data file.

        None if this file has no deletion vector, or if the vector is stored in Delta's log.
        """
        vector = self.add.get("deletionVector")
        return build_deletion_vector_path(self.folder, vector) if vector else None

    @property
    def row_count(self) -> int:
        """Number of rows in the file, including rows that are marked as deleted."""
        return int(self.stats["numRecords"])

    def may_have_values_in_ranges(self, bounds: Mapping[str, tuple[Any, Any]], *, between: bool = False) -> bool:
        """Returns False if the file's statistics show that no row has values in all these ranges; otherwise True.

        Args:
            bounds: by column, the lowest and the highest value of its range. None stands for no limit.
            between: True if the two limits themselves do not belong to a range. False if they do.
        """
        least, most = self.stats.get("minValues", {}), self.stats.get("maxValues", {})
        apart = le if between else lt
        return not any(
            _are_ranges_disjoint(low, high, least.get(name), most.get(name), apart)
            for name, (low, high) in bounds.items()
        )


def _are_ranges_disjoint(low: Any, high: Any, least: Any, most: Any, apart: Callable[[Any, Any], Any]) -> bool:
    """True if a range of values and the range in a file's statistics have no value in common.

    Args:
        low: lowest value of the range; None for no limit. At most one of `low` and `high` is None.
        high: highest value of the range; None for no limit.
        least: the column's minimum in the statistics; None if unknown.
        most: the column's maximum in the statistics; None if unknown.
        apart: comparison that is true if its first argument is before its second: `lt` or `le`. With `le`, ranges
            that share only a limit have no value in common.
    """
    end = low if high is None else high
    try:
        if isinstance(end, datetime):
            least, most = (_parse_statistics_time(text, end.tzinfo) for text in (least, most))
            most += _CUT
        elif isinstance(end, date):
            least, most = date.fromisoformat(least), date.fromisoformat(most)
        elif isinstance(end, float):
            least, most = float(least), float(most)
    except (TypeError, ValueError, OverflowError):
        return False
    # Some writers shorten decimals in statistics, so these cannot rule out a row.
    known = type(least) is type(most) is type(end) and not isinstance(end, Decimal)
    return bool(known and ((high is not None and apart(high, least)) or (low is not None and apart(most, low))))


def _parse_statistics_time(text: str, zone: tzinfo | None) -> datetime:
    moment = datetime.fromisoformat(text)
    if zone is None or moment.tzinfo is None:
        return moment.replace(tzinfo=zone)
    return moment


def list_data_files(delta: DeltaTable, *, read_vectors: bool = True) -> list[TableFile]:
    """Returns all data files of the opened version of a table.

    Args:
        delta: the table.
        read_vectors: True to read deletion vectors, which fills `deleted_rows`. False to read only the log; it then
            does not matter if files are missing on the disk.

    Raises:
        LakeError: a deletion vector has another number of rows than the log says.
    """
    folder = find_table_folder(delta)
    adds = list(read_add_actions(folder, delta.version()))
    gone = _read_deleted_rows(delta, folder, adds) if read_vectors else {}
    found, none = list[TableFile](), np.empty(0, np.int64)
    for add in adds:
        stats = parse_statistics(add.get("stats"))
        file = TableFile(folder, add, stats, gone.get(resolve_path_of_delta_log(folder, add["path"]), none))
        if read_vectors and len(file.deleted_rows) != (add.get("deletionVector") or {}).get("cardinality", 0):
            raise LakeError(
                f"{file.full_path}: its deletion vector marks {len(file.deleted_rows)} rows as deleted, but "
                f"Delta's log says {(add.get('deletionVector') or {}).get('cardinality', 0)}",
                why="So the deletion vector or the log is damaged, and it is unknown which rows are deleted",
                fix="Restore the table from a backup, or compute it again: `sessionlake recover silver` or "
                "`sessionlake recover gold`",
            )
        if read_vectors and not isinstance(stats.get("numRecords"), int):
            stats["numRecords"] = pq.read_metadata(file.full_path).num_rows
        found.append(file)
    return found


def _read_deleted_rows(delta: DeltaTable, folder: Path, adds: Iterable[Action]) -> dict[Path, Int64s]:
    """Returns the numbers of deleted rows of each data file that has a deletion vector, by the data file's full path.

    Vectors that another program wrote in another form are read by delta-rs, which returns one flag for each row.
    """
    marked = [add for add in adds if add.get("deletionVector")]
    own = {
        resolve_path_of_delta_log(folder, add["path"]): read_deletion_vector(folder, add["deletionVector"])
        for add in marked
    }
    read = {path: rows for path, rows in own.items() if rows is not None}
    if len(read) < len(marked):
        vectors = pa.table(delta.deletion_vectors())
        for url, kept in zip(vectors["filepath"].to_pylist(), vectors["selection_vector"], strict=True):
            read[convert_uri_to_path(url)] = np.flatnonzero(~kept.values.to_numpy(zero_copy_only=False))
    return read


def find_table_folder(delta: DeltaTable) -> Path:
    """Returns the folder of a table that delta-rs has opened."""
    return convert_uri_to_path(delta.table_uri)


def read_add_actions(folder: Path, version: int) -> Iterable[Action]:
    """Reads Delta's log, and returns the `add` action of each data file that a version of the table has."""
    log, found = folder / "_delta_log", dict[tuple[str, str], Action]()
    checkpoints = (file.name.partition(".") for file in log.glob("*.checkpoint.parquet") if file.is_file())
    base = max((int(n) for n, _, rest in checkpoints if rest == "checkpoint.parquet" and int(n) <= version), default=-1)
    if base >= 0:
        held = pq.read_table(log / f"{base:020}.checkpoint.parquet", columns=["add"])["add"]
        adds = (
            _convert_checkpoint_action_to_json(add) for add in held.drop_null().to_pylist() if add["path"] is not None
        )
        found = {build_log_key_of_file(add): add for add in adds}
    for number in range(base + 1, version + 1):
        with (log / f"{number:020}.json").open("rb") as lines:
            actions = [decode(line) for line in lines]
        for gone in (action["remove"] for action in actions if "remove" in action):
            found.pop(build_log_key_of_file(gone), None)
        found |= {build_log_key_of_file(action["add"]): action["add"] for action in actions if "add" in action}
    return found.values()


def build_log_key_of_file(action: Action) -> tuple[str, str]:
    """Returns the path and the deletion vector in an `add` or `remove` action of Delta's log.

    Together they identify a file. The vector is given as text; empty if there is none.
    """
    vector = action.get("deletionVector") or {}
    return action["path"], "".join(str(vector.get(name, "")) for name in ("storageType", "pathOrInlineDv", "offset"))


def _convert_checkpoint_action_to_json(add: Action) -> Action:
    """Converts an `add` action from a checkpoint of Delta's log to the form in which a commit stores it."""
    names = ("path", "size", "modificationTime")
    vector = {name: value for name, value in (add.get("deletionVector") or {}).items() if value is not None}
    known = {name: add[name] for name in names} | {"stats": _read_statistics_json(add)}
    return known | ({"deletionVector": vector} if vector else {})


def _read_statistics_json(add: Action) -> str | None:
    """Returns the statistics in an `add` action of a checkpoint of Delta's log, as JSON text; None if it has none.

    If the checkpoint stores statistics only as columns, the text has just the number of rows. The table's properties
    `delta.checkpoint.writeStatsAsJson` and `…AsStruct` decide the form.
    """
    if (stats := add.get("stats")) is not None:
        return str(stats)
    rows = (add.get("stats_parsed") or {}).get("numRecords")
    return None if rows is None else encode_log_json({"numRecords": rows}).decode()

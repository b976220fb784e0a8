"""MERGE that marks the rows it replaces and appends the new ones: it costs what the source is, not what the table is.

Of the files whose statistics leave it open, only the keys are read; rows that are replaced are marked in deletion
vectors. Neither delta-rs nor Arrow writes these, so the commit is written here, as Delta's protocol has it.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sessionlake.errors import LakeError
from sessionlake.lake.deletion_vectors import write_vector
from sessionlake.lake.folder_upkeep import gathered
from sessionlake.lake.parquet import FileWriter, WrittenFile, conformed, indexed_columns
from sessionlake.lake.table_schema import APPEND_ONLY, CHANGE_FEED
from sessionlake.lake.upsert import DELETE, WRITTEN, Upsert
from sessionlake.protocol.types import Bools, Int64s

if TYPE_CHECKING:
    from deltalake import DeltaTable

Action = dict[str, Any]
# Who writes to a table must know all that its protocol lists: of these nothing follows for what is written here.
# delta-rs lists the last for any table that it sets a property of.
_FEATURES = frozenset({"appendOnly", "changeDataFeed", "deletionVectors", "invariants", "variantType"})
_CROWD = 16
_LARGEST_TIER = 5  # of a million rows and more
_CHECKPOINT = 50  # so many commits later the log is put together, which readers begin at


@dataclass(eq=False)
class _File:
    """A file of the table.

    Attributes:
        add: what the log says of it.
        gone: its rows that are gone already, by number, rising.
        rows: those that the source replaces or removes, likewise.
        source: the source's row for each.
    """

    add: Action
    gone: Int64s
    rows: Int64s
    source: Int64s

    @property
    def path(self) -> str:
        """Within the table's folder."""
        return unquote(self.add["path"])

    @property
    def held(self) -> int:
        """How many rows it has, with those that are gone."""
        return int(json.loads(self.add["stats"])["numRecords"])


def can_be_marked(delta: DeltaTable) -> bool:
    """Whether the table asks nothing of its writers that is not done here."""
    features = delta.protocol().writer_features or ()
    return _FEATURES.issuperset(features) and delta.metadata().configuration.get(CHANGE_FEED) != "true"


def merged_by_marking(delta: DeltaTable, source: pa.Table, upsert: Upsert, app: str, batch: int) -> bool:
    """Commits one MERGE; False if another commit has come in between, so that it is to be done again.

    Args:
        delta: the table's present version; it has deletion vectors, and nothing that `can_be_marked` denies.
        source: at most one row a key.
        app: application id of the transaction.
        batch: its version.

    Raises:
        LakeError: a file's vector is not what the log says.
    """
    folder, schema = _path(delta.table_uri), pa.schema(delta.schema().to_arrow())
    source = source.combine_chunks()
    files = _live(folder, delta)
    had = _match(folder, files, source, upsert)
    updated = [_updated(folder, file, source, upsert, schema) for file in files if len(file.rows) and upsert.updates]
    inserted = _inserted(source, upsert, had)
    only_grows = delta.metadata().configuration.get(APPEND_ONLY) == "true"
    absorbed = [] if only_grows else _crowded(files)
    rows = chain(*(_moved(folder, file, schema) for file in absorbed), _batches([*updated, inserted], schema))
    written = _file(folder, rows, schema, indexed_columns(delta))
    vectors, changes = list[Path](), [_removed(file) for file in absorbed]
    for file in files:
        if len(file.rows) and file not in absorbed:
            changes += _replaced(folder, file, vectors)
    updates, marked = sum(part.num_rows for part in updated), sum(len(file.rows) for file in files)
    metrics = {
        "numTargetRowsInserted": inserted.num_rows,
        "numTargetRowsUpdated": updates,
        "numTargetRowsDeleted": marked - updates,
    }
    now = int(time.time() * 1000)
    info = {
        "timestamp": now,
        "engineInfo": "sessionlake",
        "operation": "MERGE",
        "operationMetrics": {k: str(v) for k, v in metrics.items()},
    }
    actions = [{"commitInfo": info}, {"txn": {"appId": app, "version": batch, "lastUpdated": now}}, *changes]
    actions += [] if written is None else [{"add": _added(written, now)}]
    if _committed(folder, delta.version() + 1, actions):
        if (delta.version() + 1) % _CHECKPOINT == 0:
            type(delta)(folder).create_checkpoint()
        return True
    for path in (*vectors, *([] if written is None else [folder / written.path])):
        path.unlink(missing_ok=True)
    return False


def _live(folder: Path, delta: DeltaTable) -> list[_File]:
    """The files of the table's version."""
    vectors, gone = pa.table(delta.deletion_vectors()), dict[Path, Int64s]()
    for url, kept in zip(vectors["filepath"].to_pylist(), vectors["selection_vector"], strict=True):
        gone[_path(url)] = np.flatnonzero(~kept.values.to_numpy(zero_copy_only=False))
    none = np.empty(0, np.int64)
    found = [_File(add, none, none, none) for add in _adds(folder, delta.version())]
    for file in found:
        file.gone = gone.get(folder / file.path, none)
        if len(file.gone) != (file.add.get("deletionVector") or {}).get("cardinality", 0):
            raise LakeError(f"{folder}: of {file.path}, {len(file.gone)} rows are marked, and the log says otherwise")
        stats = json.loads(file.add.get("stats") or "{}")
        if "numRecords" not in stats:
            stats["numRecords"] = pq.read_metadata(folder / file.path).num_rows
            file.add["stats"] = json.dumps(stats)
    return found


def _path(url: str) -> Path:
    """The file that delta-rs names."""
    return Path(url2pathname(urlsplit(url).path))


def _adds(folder: Path, version: int) -> Iterable[Action]:
    """The log's `add` of each file of a version."""
    log, found = folder / "_delta_log", dict[str, Action]()
    checkpoints = (file.name.partition(".") for file in log.glob("*.checkpoint.parquet"))
    base = max((int(n) for n, _, rest in checkpoints if rest == "checkpoint.parquet" and int(n) <= version), default=-1)
    if base >= 0:
        held = pq.read_table(log / f"{base:020}.checkpoint.parquet", columns=["add"])["add"]
        found = {add["path"]: _as_json(add) for add in held.drop_null().to_pylist() if add["path"] is not None}
    for number in range(base + 1, version + 1):
        with (log / f"{number:020}.json").open("rb") as lines:
            actions = [json.loads(line) for line in lines]
        for gone in (action["remove"] for action in actions if "remove" in action):
            found.pop(gone["path"], None)
        found |= {action["add"]["path"]: action["add"] for action in actions if "add" in action}
    return found.values()


def _match(folder: Path, files: Iterable[_File], source: pa.Table, upsert: Upsert) -> Bools:
    """Notes in each file what is to be marked; which of the source's rows the table has."""
    had = np.zeros(source.num_rows, np.bool_)
    removes = pc.fill_null(source[DELETE], False).to_numpy() if upsert.deletes else had.copy()  # noqa: FBT003
    for file in files:
        if _may_match(file.add, source, upsert.keys):
            rows, index = _same_keys(folder, file, source, upsert.keys)
            had[index] = True
            acted = removes[index] | upsert.updates
            file.rows, file.source = rows[acted], index[acted]
    return had


def _as_json(add: Action) -> Action:
    """An `add` of a checkpoint as a commit has it."""
    names = ("path", "size", "modificationTime", "stats")
    vector = {name: value for name, value in (add.get("deletionVector") or {}).items() if value is not None}
    return {name: add[name] for name in names} | ({"deletionVector": vector} if vector else {})


def _may_match(add: Action, source: pa.Table, keys: Sequence[str]) -> bool:
    """Whether the file's statistics leave it open that it has rows of the source's keys."""
    stats = json.loads(add.get("stats") or "{}")
    for name in keys:
        least, most = (stats.get(end, {}).get(name) for end in ("minValues", "maxValues"))
        ends = pc.min_max(source[name]).as_py()
        if type(least) is type(most) is type(ends["min"]) and (ends["min"] > most or ends["max"] < least):
            return False
    return True


def _same_keys(folder: Path, file: _File, source: pa.Table, keys: Sequence[str]) -> tuple[Int64s, Int64s]:
    """Rows of the file with a key of the source's, and the source's rows: key by key, of the rows that are left."""
    texts = [name for name in keys if pa.types.is_string(source.schema.field(name).type)]
    with pq.ParquetFile(folder / file.path, read_dictionary=texts, coerce_int96_timestamp_unit="us") as content:
        columns = content.read(columns=list(keys))
    rows = np.setdiff1d(np.arange(columns.num_rows), file.gone, assume_unique=True)
    number, wanted = np.zeros(len(rows), np.int64), np.zeros(source.num_rows, np.int64)
    for name in keys:
        column = columns[name].unify_dictionaries()
        values = pc.unique(source[name])
        place = _places(column if len(rows) == len(column) else column.take(pa.array(rows)), values)
        own = pc.index_in(source[name], value_set=values).to_numpy()
        wanted, kinds = _dense(wanted * len(values) + own)
        code = number * len(values) + place
        at = np.minimum(np.searchsorted(kinds, code), len(kinds) - 1)
        same = (place >= 0) & (kinds[at] == code)
        rows, number = rows[same], at[same]
    by_number = np.empty(source.num_rows, np.int64)
    by_number[wanted] = np.arange(source.num_rows)
    return rows, by_number[number]


def _dense(numbers: Int64s) -> tuple[Int64s, Int64s]:
    kinds, dense = np.unique(numbers, return_inverse=True)
    return dense.reshape(-1), kinds


def _places(column: Any, values: pa.Array) -> Int64s:
    """Place of each value among others, -1 for those that are not there."""
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    if pa.types.is_dictionary(column.type):
        known = pc.fill_null(pc.index_in(column.dictionary, value_set=values), -1).to_numpy()
        index = pc.fill_null(column.indices, -1).to_numpy()
        return np.append(known, -1)[index].astype(np.int64)
    return pc.fill_null(pc.index_in(column.cast(values.type), value_set=values), -1).to_numpy().astype(np.int64)


def _updated(folder: Path, file: _File, source: pa.Table, upsert: Upsert, schema: pa.Schema) -> pa.Table:
    """The rows in the place of those that are marked."""
    given, rows = source.take(pa.array(file.source)), file.rows
    if upsert.deletes:
        kept = pc.invert(pc.fill_null(given[DELETE], False))  # noqa: FBT003
        given, rows = given.filter(kept), rows[kept.to_numpy()]
    columns: dict[str, Any] = {name: given[name] for name in (*upsert.keys, *upsert.columns)}
    others = [name for name in schema.names if name not in columns]
    if others:
        with pq.ParquetFile(folder / file.path, coerce_int96_timestamp_unit="us") as content:
            present = [name for name in others if name in content.schema_arrow.names]
            held = content.read(columns=present).take(pa.array(rows))
        columns |= {name: held[name].cast(schema.field(name).type) for name in present}
    for i, name in enumerate(upsert.kept):
        new = given[name].cast(schema.field(name).type)
        former = columns.get(name, pa.nulls(len(new), new.type))  # the file may be older than the column
        columns[name] = pc.if_else(pc.list_element(given[WRITTEN], i), new, former)
    return pa.table(columns)


def _inserted(source: pa.Table, upsert: Upsert, had: Bools) -> pa.Table:
    new = ~had & upsert.inserts
    if upsert.deletes:
        new &= ~pc.fill_null(source[DELETE], False).to_numpy()  # noqa: FBT003
    return source.select([*upsert.keys, *upsert.columns, *upsert.kept]).filter(pa.array(new))


def _batches(parts: Iterable[pa.Table], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    return (conformed(batch, schema) for part in parts for batch in part.to_batches())


def _file(
    folder: Path, rows: Iterator[pa.RecordBatch], schema: pa.Schema, indexed: tuple[str, ...]
) -> WrittenFile | None:
    for written in FileWriter(str(folder), schema, indexed)(gathered(rows)):
        return WrittenFile(**written.to_pylist()[0])
    return None


def _crowded(files: Sequence[_File]) -> list[_File]:
    """Some small files, if there are many of about one size: their rows go into the file that is written anyhow.

    Of each row, that is done as often as the table is larger than a MERGE by a factor of `_CROWD`.
    """
    for size in range(_LARGEST_TIER):
        tier = [file for file in files if _CROWD**size <= file.held < _CROWD ** (size + 1)]
        if len(tier) >= _CROWD:
            return tier[:_CROWD]
    return []


def _moved(folder: Path, file: _File, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a file that stay as they are."""
    stays, place = np.ones(file.held, np.bool_), 0
    stays[file.gone] = stays[file.rows] = False
    with pq.ParquetFile(folder / file.path, coerce_int96_timestamp_unit="us") as content:
        for batch in content.iter_batches(columns=schema.names):
            yield conformed(batch, schema).filter(pa.array(stays[place : place + batch.num_rows]))
            place += batch.num_rows


def _removed(file: _File) -> Action:
    known = {name: file.add[name] for name in ("path", "size", "deletionVector") if name in file.add}
    rest = {"dataChange": True, "extendedFileMetadata": True, "partitionValues": {}}
    return {"remove": known | rest | {"deletionTimestamp": int(time.time() * 1000)}}


def _replaced(folder: Path, file: _File, vectors: list[Path]) -> list[Action]:
    """The file with more rows marked; none of it where all are."""
    add, rows = file.add, np.union1d(file.gone, file.rows)
    if len(rows) == file.held:
        return [_removed(file)]
    vector, path = write_vector(folder, rows)
    vectors.append(path)
    known = {name: add[name] for name in ("path", "size", "modificationTime")}
    stats = json.dumps(json.loads(add["stats"]) | {"tightBounds": False})
    rest = {"partitionValues": {}, "dataChange": True, "stats": stats, "deletionVector": vector}
    return [_removed(file), {"add": known | rest}]


def _added(file: WrittenFile, now: int) -> Action:
    whole = {"path": file.path, "size": file.size, "partitionValues": {}, "modificationTime": now}
    return whole | {"dataChange": True, "stats": file.stats}


def _committed(folder: Path, version: int, actions: Iterable[Action]) -> bool:
    """Writes a commit, if nobody else has written one of this number."""
    log = folder / "_delta_log"
    written = log / f".{uuid.uuid4()}.json"
    written.write_text("".join(json.dumps(action) + "\n" for action in actions), encoding="utf-8")
    try:
        os.link(written, log / f"{version:020}.json")
    except FileExistsError:
        return False
    finally:
        written.unlink()
    return True

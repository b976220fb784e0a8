"""What a class of one's own makes of rows, key by key, in their order."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sessionlake.errors import ConfigError, ProcessorError
from sessionlake.processors.api import KeyedProcessor, Record
from sessionlake.processors.computation import (
    Computation,
    each_group,
    have,
    require_columns,
    require_exact,
    require_names,
)
from sessionlake.processors.load import ProcessorRef, ref_of
from sessionlake.processors.output import BATCH, OutputColumns
from sessionlake.protocol.arrow import sort_rows
from sessionlake.protocol.names import internal
from sessionlake.settings.model import OnViolation, ProcessorSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ORDINAL = "ordinal"
_ERROR = internal("error")
_SLICE = 4096
_PUBLISHED = frozenset({ORDINAL, BATCH})


class ByClass(Computation):
    """The records that a class yields for each key, numbered.

    Args:
        present: the source's columns and their types.

    Raises:
        ConfigError: the class or the columns cannot be used.
    """

    def __init__(self, own: ProcessorSettings, present: Mapping[str, str]) -> None:
        if own.on_error not in (None, OnViolation.FAIL):
            raise ConfigError(f"{own.where}.on_error: with a key there is fail alone")
        require_columns(own, (*own.key, *own.order), present)
        require_names(own, _PUBLISHED)
        require_exact(own, "key", own.key, present)
        self._own, self._ref = own, ref_of(own)
        self._head = (*((name, present[name]) for name in own.key), (ORDINAL, "int"))
        try:
            output = OutputColumns(self._ref.load_keyed().output, self._head)
        except ValueError as error:
            raise ConfigError(f"{own.where}.class: {own.target}.output: {error}") from None
        self.by, self.keys, self.columns = own.key, (*own.key, ORDINAL), output.ddl[:-1]
        self.comments = {name: f"Key: {name} of {own.source}" for name in own.key} | output.comments
        self.comments |= {ORDINAL: "Number of the record among those of its key, from 0"}
        self.comment = f"What the processor {own.name} makes of the rows of {own.source}, key by key"

    def given(self, rows: DataFrame) -> DataFrame:
        """See `Computation`."""
        return have(rows, self.by)

    def made(self, rows: DataFrame) -> DataFrame:
        """See `Computation`."""
        from pyspark.sql import functions as F

        columns = (*self.columns, (_ERROR, "string"))
        found = each_group(rows, self.by, _Groups(self._ref, self._own, self._head), columns)
        failed = found.where(F.col(_ERROR).isNotNull()).orderBy(_ERROR).first()
        if failed is not None:
            raise ProcessorError(
                f"processor {self._own.name} failed: {failed[_ERROR]}. Nothing of the batch was committed. Correct "
                "the class and run it again"
            )
        return found.drop(_ERROR)


def calls_of(
    processor: KeyedProcessor[Any], key: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]
) -> Iterator[Iterable[Record]]:
    """What a processor makes of a key's rows, call by call.

    Args:
        rows: all there are, in their order.
    """
    state = processor.initial(key)
    for row in rows:
        yield processor.on_row(state, row) or ()
    yield processor.on_end(state) or ()


@dataclass(frozen=True)
class _Groups:
    """A function of Arrow tables: rows of several keys to what comes of each.

    What a class raises is said in `_ERROR`, of which the first row stops the batch.
    """

    ref: ProcessorRef
    own: ProcessorSettings
    head: tuple[tuple[str, str], ...]

    def __call__(self, rows: pa.Table) -> pa.Table:
        processor = self.ref.load_keyed()
        output = OutputColumns(processor.output, self.head)
        ordered = sort_rows(rows, (*self.own.key, *self.own.order))
        keys, records, errors = list[tuple[Any, ...]](), list[Any](), list[str | None]()
        key_types = [rows.schema.field(name).type for name in self.own.key]
        for key, of_key in groupby(_each(ordered), key=lambda row: tuple(row[name] for name in self.own.key)):
            found, error = self._checked(processor, output, dict(zip(self.own.key, key, strict=True)), of_key)
            keys += [key] * len(found)
            records += found
            errors += [error] * len(found)
        if any(errors):  # the batch is not committed
            place = next(i for i, error in enumerate(errors) if error)
            keys, records, errors = keys[place : place + 1], [None], errors[place : place + 1]
        columns = {
            name: pa.array([key[i] for key in keys], kind)
            for i, (name, kind) in enumerate(zip(self.own.key, key_types, strict=True))
        }
        columns[ORDINAL] = pa.array(_numbered(keys), pa.int32())
        blank = output.check({})
        columns |= output.own([blank if record is None else record for record in records])
        return pa.table({**columns, _ERROR: pa.array(errors, pa.string())})

    def _checked(
        self, processor: KeyedProcessor[Any], output: OutputColumns, key: Mapping[str, Any], rows: Iterable[Any]
    ) -> tuple[list[Any], str | None]:
        found = list[Any]()
        try:
            for call in calls_of(processor, key, self._apart(rows)):
                found += map(output.check, self._limited(call))
        except Exception as error:  # noqa: BLE001 (a processor is its user's code)
            return [None], f"key {json.dumps(dict(key), default=str)}: {type(error).__name__}: {error}"
        return found, None

    def _limited(self, call: Iterable[Record]) -> Iterator[Record]:
        limit = self.own.max_records_per_call
        for number, record in enumerate(call):
            if number == limit:
                raise OverflowError(f"more than {limit} records of one call: max_records_per_call allows no more")
            yield record

    def _apart(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
        """A key's rows, as long as each has its own place among them: else batches would decide which comes first."""
        former: list[Any] | None = None
        for row in rows:
            place = [row[name] for name in self.own.order]
            if place == former:
                raise ValueError(f"two rows are alike in {', '.join(self.own.order)}: `order` must tell them apart")
            former = place
            yield row


def _each(rows: pa.Table) -> Iterator[dict[str, Any]]:
    for batch in rows.to_batches(max_chunksize=_SLICE):
        yield from batch.to_pylist()


def _numbered(keys: Iterable[tuple[Any, ...]]) -> list[int]:
    """Of each record, which of its key's it is."""
    seen: dict[tuple[Any, ...], int] = {}
    found = []
    for key in keys:
        found.append(seen.get(key, 0))
        seen[key] = found[-1] + 1
    return found

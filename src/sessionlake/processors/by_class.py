"""Computes the table of a processor with a key: a user's class receives the rows of each key in order."""

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
    TableComputation,
    compute_rows_by_key,
    require_exact_types,
    require_source_columns,
    require_usable_key_names,
    select_rows_without_nulls,
)
from sessionlake.processors.load import ProcessorClassReference, create_processor_class_reference
from sessionlake.processors.output import BATCH, OutputColumns
from sessionlake.protocol.arrow import sort_rows
from sessionlake.protocol.names import add_internal_prefix
from sessionlake.settings.model import ProcessorSettings
from sessionlake.settings.section import OnViolation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ORDINAL = "ordinal"
_ERROR = add_internal_prefix("error")
_SLICE = 4096
_PUBLISHED = frozenset({ORDINAL, BATCH})


class KeyedComputation(TableComputation):
    """Computes the output records that a user's class yields for each key, and numbers each key's records from 0.

    Args:
        config: The processor's configuration.
        present: The columns of the source table and their Spark SQL types.

    Raises:
        ConfigError: The class or the columns cannot be used.
    """

    def __init__(self, config: ProcessorSettings, present: Mapping[str, str]) -> None:
        if config.on_error not in (None, OnViolation.FAIL):
            raise ConfigError(
                f"{config.config_key}.on_error: a processor that reads a table by key allows only `fail`",
                why="It computes the result of a key from all its rows, so it cannot leave out a row that failed",
                fix="Set on_error to `fail` or remove it",
            )
        require_source_columns(config, (*config.key, *config.order), present)
        require_usable_key_names(config, _PUBLISHED)
        require_exact_types(config, "key", config.key, present)
        self._config, self._ref = config, create_processor_class_reference(config)
        self._head = (*((name, present[name]) for name in config.key), (ORDINAL, "int"))
        try:
            output = OutputColumns(self._ref.load_keyed_processor().output, self._head)
        except ValueError as error:
            raise ConfigError(
                f"{config.config_key}.class: {config.target}.output: {error}", fix="Correct `output` of the class"
            ) from None
        self.by, self.keys, self.columns = config.key, (*config.key, ORDINAL), output.column_types[:-1]
        self.comments = {name: f"Key: {name} of {config.source}" for name in config.key} | output.column_comments
        self.comments |= {ORDINAL: "Number of the record among those of its key, from 0"}
        self.comment = f"Records of the processor {config.name}, computed from the rows of {config.source} key by key"

    def select_input_rows(self, rows: DataFrame) -> DataFrame:
        """Returns the source table's rows without those that are null in a key column."""
        return select_rows_without_nulls(rows, self.by)

    def compute_rows(self, rows: DataFrame) -> DataFrame:
        """Returns the output rows that the user's class computes from these source rows.

        Raises:
            ProcessorError: The class failed for a key.
        """
        from pyspark.sql import functions as F

        columns = (*self.columns, (_ERROR, "string"))
        found = compute_rows_by_key(rows, self.by, _KeyRecordsFunction(self._ref, self._config, self._head), columns)
        failed = found.where(F.col(_ERROR).isNotNull()).orderBy(_ERROR).first()
        if failed is not None:
            raise ProcessorError(
                f"processor {self._config.name} failed: {failed[_ERROR]}",
                why="Nothing of the batch was committed",
                fix="Correct the processor's class and run it again: it repeats the batch",
            )
        return found.drop(_ERROR)


def process_rows_of_key(
    processor: KeyedProcessor[Any], key: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]
) -> Iterator[Iterable[Record]]:
    """Passes the rows of one key to the processor, and yields the output records of each call.

    There is one call of `on_row` per row, and then one of `on_end`.

    Args:
        processor: The user's processor.
        key: Values of the key's columns, by name.
        rows: All rows of the key, in order.
    """
    state = processor.initial(key)
    for row in rows:
        yield processor.on_row(state, row) or ()
    yield processor.on_end(state) or ()


@dataclass(frozen=True)
class _KeyRecordsFunction:
    """A function that computes the output records of several keys from an Arrow table of all their source rows.

    If the class raises, the result has an error text in a column that is otherwise null. One such row stops the batch.

    Attributes:
        ref: Identifies the user's class.
        config: The processor's configuration.
        head: The first columns of the result, as pairs of name and Spark SQL type: the key, and `ordinal`.
    """

    ref: ProcessorClassReference
    config: ProcessorSettings
    head: tuple[tuple[str, str], ...]

    def __call__(self, rows: pa.Table) -> pa.Table:
        processor = self.ref.load_keyed_processor()
        output = OutputColumns(processor.output, self.head)
        ordered = sort_rows(rows, (*self.config.key, *self.config.order))
        keys, records, errors = list[tuple[Any, ...]](), list[Any](), list[str | None]()
        key_types = [rows.schema.field(name).type for name in self.config.key]
        for key, of_key in groupby(
            _read_row_dicts(ordered), key=lambda row: tuple(row[name] for name in self.config.key)
        ):
            found, error = self._compute_records_of_key(
                processor, output, dict(zip(self.config.key, key, strict=True)), of_key
            )
            keys += [key] * len(found)
            records += found
            errors += [error] * len(found)
        if any(errors):  # one error is enough, since the batch is not committed
            place = next(i for i, error in enumerate(errors) if error)
            keys, records, errors = keys[place : place + 1], [None], errors[place : place + 1]
        columns = {
            name: pa.array([key[i] for key in keys], kind)
            for i, (name, kind) in enumerate(zip(self.config.key, key_types, strict=True))
        }
        columns[ORDINAL] = pa.array(_number_rows_per_key(keys), pa.int32())
        blank = output.convert_record_to_struct({})
        columns |= output.create_declared_arrays([blank if record is None else record for record in records])
        return pa.table({**columns, _ERROR: pa.array(errors, pa.string())})

    def _compute_records_of_key(
        self, processor: KeyedProcessor[Any], output: OutputColumns, key: Mapping[str, Any], rows: Iterable[Any]
    ) -> tuple[list[Any], str | None]:
        found = list[Any]()
        try:
            for call in process_rows_of_key(processor, key, self._require_rows_in_distinct_order(rows)):
                found += map(output.convert_record_to_struct, self._require_record_count_within_limit(call))
        except Exception as error:  # noqa: BLE001 (a processor is its user's code)
            return [None], f"key {json.dumps(dict(key), default=str)}: {type(error).__name__}: {error}"
        return found, None

    def _require_record_count_within_limit(self, records_of_call: Iterable[Record]) -> Iterator[Record]:
        limit = self.config.max_records_per_call
        for number, record in enumerate(records_of_call):
            if number == limit:
                raise OverflowError(f"more than {limit} records of one call, the limit of max_records_per_call")
            yield record

    def _require_rows_in_distinct_order(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
        """Yields the rows of a key unchanged. Without distinct order values, results would depend on batch boundaries.

        Raises:
            ValueError: Two rows in sequence have equal values in all columns of the setting `order`.
        """
        former: list[Any] | None = None
        for row in rows:
            place = [row[name] for name in self.config.order]
            if place == former:
                raise ValueError(f"two rows are equal in {', '.join(self.config.order)}: `order` must distinguish them")
            former = place
            yield row


def _read_row_dicts(rows: pa.Table) -> Iterator[dict[str, Any]]:
    for batch in rows.to_batches(max_chunksize=_SLICE):
        yield from batch.to_pylist()


def _number_rows_per_key(keys: Iterable[tuple[Any, ...]]) -> list[int]:
    """Returns the number of each record among the records of its key, from 0.

    Args:
        keys: The key of each record, in the order of the records.
    """
    seen: dict[tuple[Any, ...], int] = {}
    found = []
    for key in keys:
        found.append(seen.get(key, 0))
        seen[key] = found[-1] + 1
    return found

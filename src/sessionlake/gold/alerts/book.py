"""`gold.rules` as gold takes it: which rules are in force, since which batch, and why one is not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import pyarrow as pa

from sessionlake.delta.commit import delete_all_rows, next_txn, replace_rows
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import RULE_MATCHES, RULE_RESULTS, RULE_STATUS, RULE_TIMES, RULES
from sessionlake.delta.storage.reading import TableReader
from sessionlake.delta.storage.txn import Txn
from sessionlake.gold.aggregate.sources import Declared
from sessionlake.gold.rules.document import read_text
from sessionlake.gold.rules.rule import Rule
from sessionlake.gold.rules.tree import Pattern
from sessionlake.protocol.types import Row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_STATUS = pa.schema([(name, pa.string()) for name in ("rule", "version", "text", "error")] + [("taken_by", pa.int64())])
TIMES = pa.schema([("topic", pa.string()), ("ts", pa.int64())])


@dataclass(frozen=True)
class Taken:
    """One enabled rule as gold took it.

    Attributes:
        rule: None where it cannot be evaluated.
        error: why not.
        batch: gold's, that took it.
    """

    name: str
    text: str | None
    rule: Rule | None
    error: str | None
    batch: int

    @property
    def row(self) -> Row:
        """The rule as a row of `gold.rule_status`."""
        version = None if self.rule is None else self.rule.version
        return {"rule": self.name, "version": version, "text": self.text, "error": self.error, "taken_by": self.batch}


def wanted(rows: Iterable[Row], declared: Declared, batch: int, kept: timedelta | None = None) -> list[Taken]:
    """What the rows of `gold.rules` come to, in order of names.

    Args:
        kept: how long all slices are there that windows are put together of; None: for good.
    """
    enabled: dict[str, list[str | None]] = {}
    for row in rows:
        if row["enabled"]:
            enabled.setdefault(row["name"] or "", []).append(row["text"])
    return [_taken(name, texts, declared, batch, kept) for name, texts in sorted(enabled.items())]


def _taken(name: str, texts: list[str | None], declared: Declared, batch: int, kept: timedelta | None) -> Taken:
    text = texts[0]
    if len(texts) > 1:
        return Taken(name, text, None, f"{len(texts)} rows of {RULES} have this name", batch)
    if text is None:
        return Taken(name, text, None, "it has no text", batch)
    found = read_text(name, text, declared)
    if isinstance(found, Rule):
        if kept is not None and not isinstance(found.tree, Pattern) and timedelta(minutes=found.longest) >= kept:
            return Taken(name, text, None, f"its longest window is not shorter than gold.retention ({kept})", batch)
        return Taken(name, text, found, None, batch)
    return Taken(name, text, None, f"line {found.line}, column {found.column}: {found.reason}", batch)


def in_force(reader: TableReader, declared: Declared) -> list[Taken]:
    """The rules that gold has taken."""
    found = []
    for row in reader.rows(RULE_STATUS):
        rule = None if row["error"] else read_text(row["rule"], row["text"], declared)
        kept = rule if isinstance(rule, Rule) else None
        found.append(Taken(row["rule"], row["text"], kept, row["error"], row["taken_by"]))
    return sorted(found, key=lambda one: one.name)


def forget(spark: SparkSession, lake: Lake) -> None:
    """Has gold's next batch that evaluates rules take all as new: they are held against all that is stored."""
    lake.ensure(spark, [table for table in RULE_RESULTS if lake.exists(spark, table)])
    if lake.exists(spark, RULE_STATUS):
        replace_rows(spark, lake, RULE_TIMES, TIMES.empty_table())
        replace_rows(spark, lake, RULE_STATUS, _STATUS.empty_table())
    if lake.exists(spark, RULE_MATCHES):  # new rules look for all of their events
        delete_all_rows(spark, lake, RULE_MATCHES, next_txn(spark, lake, RULE_MATCHES, "forget"))


class RuleBook:
    """Follows `gold.rules` batch by batch.

    What a batch takes is noted before it is evaluated, under its transaction, and it evaluates what is noted: one that
    is done once more finds what it noted before, whatever the rules are by then. Its alerts would be other ones than
    those that it may have logged already.
    """

    def __init__(self, lake: Lake, declared: Declared, kept: timedelta | None = None) -> None:
        self._lake, self._declared, self._kept = lake, declared, kept
        self._version: int | None = None
        self._taken: list[Taken] = []

    def take(self, spark: SparkSession, txn: Txn) -> list[Taken]:
        """The rules that this batch is to evaluate; costs a look at the table's version where it has not changed."""
        version = self._lake.latest_version(spark, RULES)
        if version == self._version:
            return self._taken
        reader = self._lake.reader(spark)
        before = in_force(reader, self._declared) if reader.exists(RULE_STATUS) else []
        now = _kept(before, wanted(reader.rows(RULES), self._declared, txn.version, self._kept))
        self._taken = before if _rows(now) == _rows(before) else self._noted(spark, now, txn)
        self._version = version if _rows(now) == _rows(self._taken) else None
        return self._taken

    def _noted(self, spark: SparkSession, now: list[Taken], txn: Txn) -> list[Taken]:
        """What the batch has noted, now or before."""
        self._lake.ensure(spark, RULE_RESULTS)
        if not now:  # whoever begins once more begins with what has been read by then
            replace_rows(spark, self._lake, RULE_TIMES, TIMES.empty_table(), txn)
        replace_rows(spark, self._lake, RULE_STATUS, pa.Table.from_pylist(_rows(now), _STATUS), txn)
        return in_force(self._lake.reader(spark), self._declared)


def _rows(taken: Iterable[Taken]) -> list[Row]:
    return [one.row for one in taken]


def _kept(before: Iterable[Taken], now: Iterable[Taken]) -> list[Taken]:
    """What is taken now; of what is as it was, since the batch that took it."""
    known = {one.name: one for one in before}
    return [_since(known.get(one.name), one) for one in now]


def _since(before: Taken | None, now: Taken) -> Taken:
    same = before is not None and (before.rule, before.error) == (now.rule, now.error)
    return Taken(now.name, now.text, now.rule, now.error, before.batch) if same and before is not None else now

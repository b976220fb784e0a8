"""Reference tables and enriched tables as the configuration declares them."""

from __future__ import annotations

from sessionlake.delta.schemas.definition import TableSchema, Writes, with_comments
from sessionlake.errors import ConfigError
from sessionlake.gold.declared.comments import enriched_comments, reference_comments
from sessionlake.gold.enrich.reference import GONE_BY, TAKEN_BY, Reference, taken_columns
from sessionlake.gold.enrich.table import BATCH, JOINED_ON, OF_CHANGE, Enriched, Join
from sessionlake.protocol.names import check_columns
from sessionlake.settings.model import Settings
from sessionlake.settings.references import EnrichedSettings, JoinSettings


def references_of(settings: Settings) -> tuple[Reference, ...]:
    """The reference tables."""
    return tuple(
        Reference(one.name, tuple(one.keys.items()), tuple(one.columns.items())) for one in settings.gold.references
    )


def enriched_of(settings: Settings) -> tuple[Enriched, ...]:
    """The enriched tables.

    Raises:
        ConfigError: one names a column or a reference table that there is not, or compares columns of two types.
    """
    return tuple(_enriched(settings, one) for one in settings.gold.enriched)


def enriched_schema(one: Enriched) -> TableSchema:
    """The definition of an enriched table."""
    joined = (name for join in one.joins for name in join.on)
    skipping = tuple(dict.fromkeys((*one.keys, "offset", "ts", BATCH, *joined)))
    return TableSchema(
        with_comments(one.columns, enriched_comments(one)),
        one.comment,
        written_by="gold.references.step",
        cluster_by=one.keys,
        statistics_columns=skipping,
        writes=Writes.BOTH,
    )


def reference_schemas(settings: Settings) -> dict[str, TableSchema]:
    """The definitions of the reference tables, and of those that have what gold has taken of them."""
    found = {}
    for one in references_of(settings):
        first, comments = one.key_names[:1], reference_comments(one)
        found[one.table] = TableSchema(
            with_comments(one.all_columns, comments),
            f"What holds of each {', '.join(one.key_names)}, and from when until when",
            written_by="gold.references.writing",
            cluster_by=first,
            statistics_columns=one.key_names,
            writes=Writes.BOTH,
        )
        found[one.taken] = TableSchema(
            with_comments(taken_columns(one), comments),
            f"What gold has taken of {one.table}: its tables rest on the rows that are not gone",
            written_by="gold.references.taken",
            cluster_by=first,
            statistics_columns=(*one.key_names, TAKEN_BY, GONE_BY),
            writes=Writes.BOTH,
        )
    return found


def _enriched(settings: Settings, one: EnrichedSettings) -> Enriched:
    declared = {column.name: column.sql for column in settings.capture.declared}
    where = f"gold.enriched.{one.name}"
    joins = tuple(_join(settings, join, where) for join in one.join)
    chosen = tuple(declared) if one.columns is None else one.columns
    if strange := [name for name in chosen if name not in declared]:
        raise ConfigError(f"{where}.columns: {', '.join(strange)}: no declared column; there are {', '.join(declared)}")
    joined = [name for join in joins for name in join.on if name not in JOINED_ON]
    own = (*OF_CHANGE, *((name, declared[name]) for name in dict.fromkeys((*chosen, *joined))))
    found = Enriched(one.name, own, joins, f"Changes with what {', '.join(j.reference.name for j in joins)} said then")
    _require_names(found, where)
    return found


def _require_names(table: Enriched, where: str) -> None:
    """Returns if the table can have the columns that it is to have beside those of every change."""
    published = (*dict(OF_CHANGE), BATCH)
    declared = (name for name, _ in table.own[len(OF_CHANGE) :])
    added = (name for join in table.joins for name, _ in join.added)
    instead = ", by `take` or `name` of the join if it is added by one; or leave it out: `columns` names those to have"
    try:
        check_columns((*declared, *added), published, table.table, instead)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None


def _join(settings: Settings, one: JoinSettings, where: str) -> Join:
    known = {reference.name: reference for reference in references_of(settings)}
    reference = known.get(one.reference)
    if reference is None:
        there = ", ".join(known) or "none"
        raise ConfigError(f"{where}.join: {one.reference} is no reference table of gold.references; there are {there}")
    if {*one.keys} != {*reference.key_names}:
        raise ConfigError(f"{where}.join.keys: the keys of {reference.name} are {', '.join(reference.key_names)}")
    types = dict.fromkeys(JOINED_ON, "string") | {c.name: c.sql for c in settings.capture.declared}
    for name, sql in reference.keys:
        column = one.keys[name]
        if types.get(column) != sql:
            found = types.get(column, "no column")
            raise ConfigError(
                f"{where}.join.keys: {name} of {reference.name} is {sql}, {column} is {found}; "
                f"there are {', '.join(f'{key} {kind}' for key, kind in types.items())}"
            )
    said = dict(reference.columns)
    take = {name: name for name in said} if one.take is None else one.take
    if strange := [name for name in take.values() if name not in said]:
        there = ", ".join(said)
        raise ConfigError(f"{where}.join.take: {', '.join(strange)}: no column of {reference.name}; there are {there}")
    return Join(reference, one.called, tuple(one.keys[name] for name in reference.key_names), tuple(take.items()))

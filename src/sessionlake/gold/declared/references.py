"""The reference tables and enriched tables that the configuration declares, with their schemas."""

from __future__ import annotations

from sessionlake.delta.schemas.definition import TableSchema, WriteMode, add_comments
from sessionlake.errors import ConfigError
from sessionlake.gold.declared.comments import build_enriched_comments, build_reference_comments
from sessionlake.gold.enrich.reference import GONE_BY, TAKEN_BY, ReferenceTable, list_columns_of_applied_table
from sessionlake.gold.enrich.table import BATCH, CHANGE_COLUMNS, JOINABLE_COLUMNS, EnrichedTable, ReferenceJoin
from sessionlake.protocol.names import require_allowed_column_names
from sessionlake.settings.model import Settings
from sessionlake.settings.references import EnrichedTableSettings, ReferenceJoinSettings


def list_declared_references(settings: Settings) -> tuple[ReferenceTable, ...]:
    """Returns the reference tables that the configuration declares."""
    return tuple(
        ReferenceTable(one.name, tuple(one.keys.items()), tuple(one.columns.items()))
        for one in settings.gold.references
    )


def list_declared_enriched_tables(settings: Settings) -> tuple[EnrichedTable, ...]:
    """Returns the enriched tables that the configuration declares.

    Raises:
        ConfigError: a table uses an unknown column or reference table, or joins columns of different types.
    """
    return tuple(_create_enriched_table(settings, one) for one in settings.gold.enriched)


def build_enriched_schema(table: EnrichedTable) -> TableSchema:
    """Returns the definition with which an enriched table is created: columns, comments and layout."""
    joined = (name for join in table.joins for name in join.on)
    skipping = tuple(dict.fromkeys((*table.keys, "offset", "ts", BATCH, *joined)))
    return TableSchema(
        add_comments(table.column_types, build_enriched_comments(table)),
        table.comment,
        written_by="gold.references.step",
        cluster_by=table.keys,
        statistics_columns=skipping,
        writes=WriteMode.BOTH,
    )


def build_reference_schemas(settings: Settings) -> dict[str, TableSchema]:
    """Returns the definitions of all reference tables and of gold's copies of them, by table name with schema."""
    found = {}
    for one in list_declared_references(settings):
        first, comments = one.key_names[:1], build_reference_comments(one)
        found[one.table_name] = TableSchema(
            add_comments(one.all_columns, comments),
            f"What holds for each {', '.join(one.key_names)}, from when until when",
            written_by="gold.references.writing",
            cluster_by=first,
            statistics_columns=one.key_names,
            writes=WriteMode.BOTH,
        )
        found[one.applied_table_name] = TableSchema(
            add_comments(list_columns_of_applied_table(one), comments),
            f"The rows of {one.table_name} that gold has applied: enriched tables use those without {GONE_BY}",
            written_by="gold.references.applied",
            cluster_by=first,
            statistics_columns=(*one.key_names, TAKEN_BY, GONE_BY),
            writes=WriteMode.BOTH,
        )
    return found


def _create_enriched_table(settings: Settings, declaration: EnrichedTableSettings) -> EnrichedTable:
    declared = {column.name: column.sql for column in settings.capture.declared_columns}
    where = f"gold.enriched.{declaration.name}"
    joins = tuple(_create_reference_join(settings, join, where) for join in declaration.join)
    chosen = tuple(declared) if declaration.columns is None else declaration.columns
    if unknown := [name for name in chosen if name not in declared]:
        raise ConfigError(
            f"{where}.columns: {', '.join(unknown)} is not a column of capture.columns or of a feed",
            fix=f"Use some of the declared columns: {', '.join(declared)}",
        )
    joined = [name for join in joins for name in join.on if name not in JOINABLE_COLUMNS]
    own = (*CHANGE_COLUMNS, *((name, declared[name]) for name in dict.fromkeys((*chosen, *joined))))
    found = EnrichedTable(
        declaration.name,
        own,
        joins,
        f"Changes joined with {', '.join(j.reference.name for j in joins)} as of event time",
    )
    _require_valid_column_names(found, where)
    return found


def _require_valid_column_names(table: EnrichedTable, where: str) -> None:
    """Checks the names of declared columns and of columns that joins add to an enriched table.

    Args:
        table: the enriched table.
        where: the configuration key of the table, for error texts.

    Raises:
        ConfigError: a name is used by another column, repeated or not allowed.
    """
    published = (*dict(CHANGE_COLUMNS), BATCH)
    declared = (name for name, _ in table.change_columns[len(CHANGE_COLUMNS) :])
    added = (name for join in table.joins for name, _ in join.added_columns)
    instead = ", by `take` or `name` of the join if it is added by one; or leave it out: `columns` names those to have"
    try:
        require_allowed_column_names((*declared, *added), published, table.table_name, instead)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None


def _create_reference_join(settings: Settings, declaration: ReferenceJoinSettings, where: str) -> ReferenceJoin:
    known = {reference.name: reference for reference in list_declared_references(settings)}
    reference = known.get(declaration.reference)
    if reference is None:
        declared = ", ".join(known) or "none"
        raise ConfigError(
            f"{where}.join: gold.references declares no reference table {declaration.reference}; it "
            f"declares {declared}",
            fix="Declare the reference table under `gold.references`, or correct the name in `join`",
        )
    if {*declaration.keys} != {*reference.key_names}:
        raise ConfigError(
            f"{where}.join.keys names the keys {', '.join(declaration.keys) or 'nothing'}, but the "
            f"reference table {reference.name} has the keys {', '.join(reference.key_names)}",
            fix="Name each key of the reference table exactly once",
        )
    types = dict.fromkeys(JOINABLE_COLUMNS, "string") | {c.name: c.sql for c in settings.capture.declared_columns}
    for name, sql in reference.keys:
        column = declaration.keys[name]
        if types.get(column) != sql:
            found = f"{column} has the type {types[column]}" if column in types else f"there is no column {column}"
            raise ConfigError(
                f"{where}.join.keys: the key {name} of the reference table {reference.name} has the type {sql}, but "
                f"{found}",
                why="Only values of the same type can be equal",
                fix=f"Name a column of the type {sql}. The columns are {', '.join(map(' '.join, types.items()))}",
            )
    values = dict(reference.columns)
    take = {name: name for name in values} if declaration.take is None else declaration.take
    if unknown := [name for name in take.values() if name not in values]:
        raise ConfigError(
            f"{where}.join.take: the reference table {reference.name} has no column {', '.join(unknown)}",
            fix=f"Take some of its columns {', '.join(values)}",
        )
    return ReferenceJoin(
        reference,
        declaration.version_column_prefix,
        tuple(declaration.keys[name] for name in reference.key_names),
        tuple(take.items()),
    )

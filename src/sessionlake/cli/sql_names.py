"""Finds the names of tables and functions in a SQL statement with sqlglot, to look them up or replace them.

The engine that runs a statement decides whether it only reads (`spark.reading_plan`), not this module.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

_PREFIXED = ["identifier", "(", ":", "prefix", "||", ")"]
_TABLE = re.compile(r"[A-Za-z_]\w*\.[A-Za-z_]\w*", re.ASCII)
_WORD = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_PLAIN = re.compile(r"[\w .,:/@+-]*", re.ASCII)
_EXPLAIN_MODES = ("EXTENDED", "FORMATTED", "COST", "CODEGEN")
SqlNode = Any
"""A node of sqlglot's syntax tree of a statement. sqlglot is imported only when a statement is parsed."""


@dataclass(frozen=True)
class SchemaQualifiedName:
    """A name of the form `schema.name` at one place of a statement.

    Attributes:
        schema: The part before the point, in lower case.
        name: The part after the point, in lower case.
        start: The index of the name's first character in the statement.
        end: The index after its last character.
        is_function: True if it is the name of a function.
        is_table: True if a query reads the table at this place. False before a column, as in `silver.sessions.topic`.
        has_version: True if the statement says which version of the table to read.
    """

    schema: str
    name: str
    start: int
    end: int
    is_function: bool = False
    is_table: bool = False
    has_version: bool = False

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


def find_table_and_function_names(sql: str) -> list[SchemaQualifiedName]:
    """Returns the tables and functions with a schema that a statement names, in order of their position.

    Includes the table's name before a column, as in `silver.sessions.topic`, if the statement reads that table. Empty
    if
    sqlglot cannot parse the statement.
    """
    names = list(_find_tables_and_functions(sql))
    tables = {str(one) for one in names if not one.is_function}
    qualifiers = (one for one in _find_tables_before_columns(sql) if str(one) in tables)
    return sorted({*names, *qualifiers}, key=lambda one: one.start)


def replace_table_and_function_names(sql: str, new_name: Callable[[SchemaQualifiedName], str | None]) -> str:
    """Returns the statement with other names for tables and functions.

    Args:
        sql: The statement.
        new_name: Returns the replacement for a name, or None to keep it.
    """
    parts, at = [], 0
    for one in find_table_and_function_names(sql):
        new = new_name(one)
        if new is not None:
            parts += [sql[at : one.start], new]
            at = one.end
    return "".join([*parts, sql[at:]])


def replace_prefixed_table_names(sql: str) -> str:
    """Returns the statement with `silver.sessions` instead of `IDENTIFIER(:prefix || 'silver.sessions')`, and so on.

    The bundle's queries name tables this way, because every deployment has its own schemas.
    """
    import sqlglot
    from sqlglot.errors import SqlglotError

    try:
        tokens = sqlglot.tokenize(sql, dialect="databricks")
    except SqlglotError:
        return sql
    parts, at = [], 0
    for first in range(len(tokens) - len(_PREFIXED)):
        window = tokens[first : first + len(_PREFIXED) + 1]
        *words, name, _ = (token.text for token in window)
        if [word.lower() for word in words] + [window[-1].text] == _PREFIXED and _TABLE.fullmatch(name):
            parts += [sql[at : window[0].start], name]
            at = window[-1].end + 1
    return "".join([*parts, sql[at:]])


def find_sql_parameters(sql: str) -> list[tuple[str, int, int]]:
    """Returns the named parameters of a statement, such as `:topic`: name, start, and the index after the end."""
    import sqlglot
    from sqlglot.errors import SqlglotError

    try:
        tokens = sqlglot.tokenize(sql, dialect="databricks")
    except SqlglotError:
        return []
    found = []
    for before, colon, name in zip([None, *tokens], tokens, tokens[1:], strict=False):
        follows = before is not None and before.end + 1 == colon.start and (before.text[-1:].isalnum())
        if colon.text == ":" and name.start == colon.end + 1 and _WORD.fullmatch(name.text) and not follows:
            found.append((name.text, colon.start, name.end + 1))
    return found


def insert_sql_arguments(sql: str, arguments: Mapping[str, str]) -> str | None:
    """Returns the statement with its parameters replaced by texts in quotes.

    Returns None if a parameter has no text, or a text has characters that SQL engines read in different ways.
    """
    parts, at = [], 0
    for name, start, end in find_sql_parameters(sql):
        if name not in arguments:
            return None
        if not _PLAIN.fullmatch(arguments[name]):
            return None
        parts += [sql[at:start], f"'{arguments[name]}'"]
        at = end
    return "".join([*parts, sql[at:]])


@lru_cache(maxsize=8)
def parse_statements(sql: str) -> tuple[SqlNode, ...]:
    """Returns sqlglot's syntax tree of each statement in a text; for EXPLAIN, the tree of the explained statement.

    Empty if sqlglot cannot parse the text.
    """
    import sqlglot
    from sqlglot.errors import SqlglotError

    logging.getLogger("sqlglot").setLevel(logging.ERROR)  # it warns of statements it does not parse, such as SHOW
    try:
        return tuple(
            tree for tree in sqlglot.parse(_blank_out_explain_keywords(sql), dialect="databricks") if tree is not None
        )
    except (SqlglotError, RecursionError, LookupError, ValueError, TypeError, AttributeError):
        # The latter are faults of sqlglot, such as an IndexError for map(a). Spark reads such a statement.
        return ()


def is_explain_statement(sql: str) -> bool:
    """Returns True if the statement begins with EXPLAIN."""
    return _blank_out_explain_keywords(sql) != sql


def _blank_out_explain_keywords(sql: str) -> str:
    """Returns the statement with EXPLAIN and its modes replaced by spaces, so that sqlglot can parse the rest."""
    import sqlglot

    words: Sequence[str] = ("EXPLAIN",)
    while (tokens := sqlglot.tokenize(sql, dialect="databricks")) and tokens[0].text.upper() in words:
        sql = sql[: tokens[0].start] + " " * (tokens[0].end + 1 - tokens[0].start) + sql[tokens[0].end + 1 :]
        words = _EXPLAIN_MODES
    return sql


def _find_tables_and_functions(sql: str) -> Iterator[SchemaQualifiedName]:
    from sqlglot import exp

    for tree in parse_statements(sql):
        for node in tree.find_all(exp.Table, exp.Dot):
            called = isinstance(node, exp.Dot) or isinstance(node.this, exp.Func)
            if isinstance(node, exp.Table) and not node.catalog and node.db:
                is_table = not called and isinstance(tree, exp.Query)
                for name in _locate_qualified_name(node.args["db"], node.this, is_function=called):
                    yield replace(name, is_table=is_table, has_version=bool(node.args.get("version")))
            elif isinstance(node, exp.Dot) and isinstance(node.expression, exp.Func):
                yield from _locate_qualified_name(node.this, node.expression, is_function=True)


def _find_tables_before_columns(sql: str) -> Iterator[SchemaQualifiedName]:
    from sqlglot import exp

    for tree in parse_statements(sql):
        for node in tree.find_all(exp.Column):
            if node.args.get("db") is not None and node.args.get("catalog") is None:
                yield from _locate_qualified_name(node.args["db"], node.args["table"], is_function=False)


def _locate_qualified_name(schema: SqlNode, name: SqlNode, *, is_function: bool) -> Iterator[SchemaQualifiedName]:
    if "start" in schema.meta and "end" in name.meta:
        yield SchemaQualifiedName(
            schema.name.lower(), name.name.lower(), schema.meta["start"], name.meta["end"] + 1, is_function
        )

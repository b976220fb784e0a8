"""Names of columns: those that users give, and those that sessionlake adds beside them in frames and SQL.

Every name of ours that stands beside users' names begins with `INTERNAL`, and no name of a user does. So none of ours
can hide a user's column, and a user's column cannot change what our SQL means.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from unicodedata import category

INTERNAL = "__sl_"
"""How names begin that are ours alone."""
DELETE = f"{INTERNAL}delete"
"""Of rows that are merged: whether the row is gone."""
WRITTEN = f"{INTERNAL}written"
"""Of rows that are merged: a flag for each column that may stay as it is, in their order: whether it is written."""
MAX_NAME_LENGTH = 255
# Spaces and brackets no Parquet file of Delta's has; a backtick breaks MERGE into a table with a change data feed.
_REFUSED_BY_DELTA = " ,;{}()\n\t=`"
# Names that Delta's own commands give to columns beside a table's.
_OF_DELTA = frozenset(
    {"_change_type", "_commit_version", "_commit_timestamp", "packedcdc", "__is_cdc", "_condition_", "__condition__"}
    | {"_row_id_", "_row_dropped_", "_file_name_", "_input_file_name_", "_target_row_index_", "_source_row_index"}
    | {"_source_row_present_", "_target_row_present_", "_metadata"}
)
_DELTA_INTERNAL = "__delta_internal"
_UNSEEN = ("Cc", "Cs")  # control characters, and halves of surrogate pairs, which UTF-8 does not have


def internal(name: str) -> str:
    """A name of ours, for a frame or a query that has columns of users, too."""
    return f"{INTERNAL}{name}"


def is_internal(name: str) -> bool:
    """Whether the name is one of ours."""
    return fold_case(name).startswith(INTERNAL)


def quote(name: str) -> str:
    """A SQL identifier, quoted."""
    return "`" + name.replace("`", "``") + "`"


def ddl_of(columns: Iterable[tuple[str, str]]) -> str:
    """Columns, given their names and Spark SQL types, as Spark DDL."""
    return ", ".join(f"{quote(name)} {sql}" for name, sql in columns)


def fold_case(name: str) -> str:
    """The name without its case, as SQL compares names: two names with the same result are one column to SQL."""
    # As Java's `equalsIgnoreCase` has it, for which a dotted capital I and an i are one, too.
    return name.lower().upper().lower().replace("i\N{COMBINING DOT ABOVE}", "i")


def find_same_name(names: Iterable[str]) -> tuple[str, str] | None:
    """The first two of the names that are one to SQL; None if all are different."""
    seen: dict[str, str] = {}
    for name in names:
        if fold_case(name) in seen:
            return seen[fold_case(name)], name
        seen[fold_case(name)] = name
    return None


def check_columns(names: Iterable[str], published: Collection[str], table: str, instead: str = "") -> None:
    """Returns if a table can have columns with these names, beside its own.

    Args:
        published: the table's own columns.
        table: what the table is called in the message.
        instead: what else to do than to give a column another name.

    Raises:
        ValueError: naming the first column that it cannot have, why, and what to do.
    """
    own, every = {fold_case(column) for column in published}, list(names)
    for name in every:
        if (wrong := _name_problem(name)) is not None:
            raise ValueError(f"column {name!r}: {wrong}. Give the column another name{instead}")
        if fold_case(name) in own:
            raise ValueError(
                f"column {name!r}: {table} has a column of this name itself (its own are "
                f"{', '.join(sorted(published))}). Give the column another name, such as {'my_' + name!r}{instead}"
            )
    if (pair := find_same_name(every)) is not None:
        raise ValueError(f"{same_name_text(*pair)}. Give one of them another name")


def same_name_text(first: str, second: str) -> str:
    """What is wrong with two names that are one to SQL."""
    if first == second:
        return f"the column {first!r} is declared twice"
    return f"columns {first!r} and {second!r} differ only in case, which SQL does not see"


def _name_problem(name: object) -> str | None:
    """Why no table can have a column of this name; None if one can."""
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_LENGTH:
        return f"a column's name is a text of 1 to {MAX_NAME_LENGTH} characters"
    if is_internal(name):
        return f"names that begin with {INTERNAL} are kept for the columns that sessionlake adds in its own queries"
    if fold_case(name) in _OF_DELTA or fold_case(name).startswith(_DELTA_INTERNAL):
        return "Delta has a column of this name in its own commands"
    if found := sorted({*name} & {*_REFUSED_BY_DELTA}):
        every = " ".join(map(repr, _REFUSED_BY_DELTA))
        return f"Delta does not allow {' '.join(map(repr, found))} in a column's name (nor any of {every})"
    if found := sorted(character for character in {*name} if category(character) in _UNSEEN):
        return f"{' '.join(map(ascii, found))} is a control character or no character at all"
    return None

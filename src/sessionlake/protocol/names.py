"""Names of columns: checks users' names, and makes the internal names that sessionlake adds in frames and SQL.

Every internal name begins with `INTERNAL`, and no user's name may. So an internal column cannot hide a user's column,
and a user's column cannot change what sessionlake's SQL means.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from unicodedata import category

INTERNAL = "__sl_"
"""The prefix of internal names."""
DELETE = f"{INTERNAL}delete"
"""Column of rows to merge: true if the row is deleted."""
WRITTEN = f"{INTERNAL}written"
"""Column of rows to merge: a list of flags, one per column that may stay unchanged, true if it is written."""
MAX_NAME_LENGTH = 255
# Delta allows no spaces and brackets in Parquet files. A backtick breaks MERGE into a table with a change data feed.
_REFUSED_BY_DELTA = " ,;{}()\n\t=`"
# Names of columns that Delta's commands and change feed add to a table's columns.
_OF_DELTA = frozenset(
    {"_change_type", "_commit_version", "_commit_timestamp", "packedcdc", "__is_cdc", "_condition_", "__condition__"}
    | {"_row_id_", "_row_dropped_", "_file_name_", "_input_file_name_", "_target_row_index_", "_source_row_index"}
    | {"_source_row_present_", "_target_row_present_", "_metadata"}
)
_DELTA_INTERNAL = "__delta_internal"
_UNSEEN = ("Cc", "Cs")  # control characters, and halves of surrogate pairs, which UTF-8 does not have


def add_internal_prefix(name: str) -> str:
    """Returns a name with the prefix that no user's column can have, for a column that sessionlake adds."""
    return f"{INTERNAL}{name}"


def is_internal_name(name: str) -> bool:
    """Returns True if the name has the prefix of names that sessionlake adds."""
    return fold_case(name).startswith(INTERNAL)


def quote(name: str) -> str:
    """Returns the name as a quoted SQL identifier."""
    return "`" + name.replace("`", "``") + "`"


def build_ddl(columns: Iterable[tuple[str, str]]) -> str:
    """Returns Spark DDL for columns given as names and Spark SQL types."""
    return ", ".join(f"{quote(name)} {sql}" for name, sql in columns)


def fold_case(name: str) -> str:
    """Returns the name in a form that is equal for all names that SQL treats as the same column."""
    # Java's `equalsIgnoreCase`, which Spark uses, also treats a dotted capital I and an i as equal.
    return name.lower().upper().lower().replace("i\N{COMBINING DOT ABOVE}", "i")


def find_names_equal_to_sql(names: Iterable[str]) -> tuple[str, str] | None:
    """Returns the first two names that SQL treats as the same column; None if all names differ."""
    seen: dict[str, str] = {}
    for name in names:
        if fold_case(name) in seen:
            return seen[fold_case(name)], name
        seen[fold_case(name)] = name
    return None


def require_allowed_column_names(
    names: Iterable[str], built_in: Collection[str], table: str, other_advice: str = ""
) -> None:
    """Checks that a table can have columns with these names in addition to its built-in ones.

    Args:
        names: The names to check.
        built_in: The names of the table's built-in columns.
        table: The table's name in the error text.
        other_advice: What the user can do other than give the column another name. It is added to that advice.

    Raises:
        ValueError: A name is not allowed. The text says which one, why, and what to do.
    """
    own, every = {fold_case(column) for column in built_in}, list(names)
    for name in every:
        if (wrong := _find_column_name_fault(name)) is not None:
            raise ValueError(f"column {name!r}: {wrong}. Give the column another name{other_advice}")
        if fold_case(name) in own:
            raise ValueError(
                f"column {name!r}: {table} has a column of this name itself (its own are "
                f"{', '.join(sorted(built_in))}). Give the column another name, such as {'my_' + name!r}{other_advice}"
            )
    if (pair := find_names_equal_to_sql(every)) is not None:
        raise ValueError(f"{describe_name_clash(*pair)}. Give one of them another name")


def describe_name_clash(first: str, second: str) -> str:
    """Returns a text that says why two column names are the same to SQL."""
    if first == second:
        return f"the column {first!r} is declared twice"
    return f"columns {first!r} and {second!r} differ only in case, which SQL does not see"


def _find_column_name_fault(name: object) -> str | None:
    """Returns a text that says why no table can have a column of this name; None if the name is allowed."""
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_LENGTH:
        return f"a column's name must be a text of 1 to {MAX_NAME_LENGTH} characters"
    if is_internal_name(name):
        return f"names that begin with {INTERNAL} are reserved for columns that sessionlake adds in its queries"
    if fold_case(name) in _OF_DELTA or fold_case(name).startswith(_DELTA_INTERNAL):
        return "Delta uses this name for a column in its commands"
    if found := sorted({*name} & {*_REFUSED_BY_DELTA}):
        every = " ".join(map(repr, _REFUSED_BY_DELTA))
        return f"Delta does not allow {' '.join(map(repr, found))} in a column's name (nor any of {every})"
    if found := sorted(character for character in {*name} if category(character) in _UNSEEN):
        return f"{' '.join(map(ascii, found))} is a control character or half of a surrogate pair"
    return None

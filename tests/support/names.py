"""Names that users may give to columns, including every name that the source uses in its own frames and queries."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import sessionlake
from sessionlake.protocol.names import fold_case, require_allowed_column_names

_ROOT = Path(sessionlake.__file__).parent
_WORD = re.compile(r"[A-Za-z_~][\w~:]*")
# Calls that add or read columns of Spark, Arrow and pandas frames.
_OF_FRAMES = {"alias", "withColumn", "withColumnRenamed", "withColumns", "withColumnsRenamed", "col", "select", "drop"}
_OF_FRAMES |= {"selectExpr", "expr", "groupBy", "orderBy", "agg", "struct", "join", "field", "append_column", "where"}
_OF_FRAMES |= {"set_column", "rename_columns", "aggregate", "group_by", "sort_by", "table", "schema", "lit", "first"}
_OF_FRAMES |= {"max", "min", "sum", "count", "named_struct", "StructArray", "from_arrays", "defstruct"}
STRANGE = (
    *("select", "FROM", "Where", "order", "group", "by", "table", "null", "true", "date", "timestamp", "array", "map"),
    *("struct", "interval", "current_date", "current_user", "count", "rank", "over", "window", "lateral"),
    *("a.b", "a", "b", ".hidden", "trailing.", "..", "*", "x.*", "`", '"', '""', "it's", "'", "\\"),
    *("%", "%s", "{0}".strip("{}"), "$x", "#1", "a/b", "a|b", "[0]", "x[0]", "0", "123", "1e5", "-", "--", "/*", "*/"),
    *("größe", "价格", "цена", "Ÿ", "😀", "a\u200db", "e\u0301", "İ", "ß", "ﬁ", "<b>", "@", "~", "!", "?", ":"),
    *("UPPER", "MiXed", "_", "__", "_x", "__x", "self", "cls", "class", "def", "None", "import", "index", "columns"),
    *("values", "_row", "__index_level_0__", "s", "t", "here", "there", "shard", "ts", "offset"),
    *("key", "n", "of_session", "as_of", "session_as_of", "figures_with", "of_topic", "base", "writes", "id"),
)  # fmt: skip


def _documentation(tree: ast.AST) -> set[int]:
    return {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}


@cache
def own_names() -> tuple[str, ...]:
    """Returns all column names that the source uses in frames or in SQL, in order."""
    found: set[str] = set()
    for file in sorted(_ROOT.rglob("*.py")):
        tree = ast.parse(file.read_text())
        docstrings = _documentation(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
                found.update(_of_sql(node.value))
            elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in _OF_FRAMES:
                texts = (one.value for one in ast.walk(node) if isinstance(one, ast.Constant))
                found.update(text for text in texts if isinstance(text, str) and _WORD.fullmatch(text))
    return tuple(sorted(found))


def _of_sql(text: str) -> Iterator[str]:
    """Yields the words of a text that is a query or a part of one."""
    if re.search(r"\b(SELECT|AS|FROM|WHERE|JOIN|CASE)\b", text):
        yield from _WORD.findall(text)


def usable(names: Iterable[str], *published: str) -> list[str]:
    """Returns the names that a table can have in addition to its own, each once whatever its case."""
    found: dict[str, str] = {}
    for name in names:
        try:
            require_allowed_column_names([name], published, "the table")
        except ValueError:
            continue
        found.setdefault(fold_case(name), name)
    return [*found.values()]

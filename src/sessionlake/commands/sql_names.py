"""The lake's two-part names in a statement, put as the place wants them that is asked."""

from __future__ import annotations

import re
from collections.abc import Callable

COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)
QUOTED = re.compile(rf"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|{COMMENT.pattern}", re.DOTALL)
_NAME = r"(?<![\w.`])`?(bronze|silver|gold|ops|reference)`?\s*\.\s*`?(\w+)`?(?![\w`])"
_TOKEN = re.compile(f"({QUOTED.pattern})|{_NAME}", re.DOTALL | re.IGNORECASE)


def renamed(sql: str, rename: Callable[[str, str], str | None]) -> str:
    """The statement with other names, outside of strings and comments.

    Args:
        rename: what a schema of the lake and a name in it, both in lower case, are to become; None leaves them.
    """

    def replaced(found: re.Match[str]) -> str:
        return found[0] if found[1] else rename(found[2].lower(), found[3].lower()) or found[0]

    return _TOKEN.sub(replaced, sql)

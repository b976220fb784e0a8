"""Converts `keep` and `check` of a feed, and checks that the groups and columns that they name exist."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path as FilePath

from sessionlake.feeds.feed import Check, Keep
from sessionlake.feeds.paths import Constant
from sessionlake.feeds.values import FeedColumn
from sessionlake.protocol.columns import INTEGER_BITS
from sessionlake.settings.feed_code import NamedCheck
from sessionlake.settings.feed_parts import ChecksumSettings, KeepSettings, RuleSettings
from sessionlake.settings.feed_rules import require_known_column


def build_keep(
    keep: KeepSettings | None, columns: Mapping[str, FeedColumn], rules: Sequence[RuleSettings]
) -> Keep | None:
    """Converts the limit of a table. Raises ValueError if a column or group does not exist."""
    if keep is None:
        return None
    per = tuple(require_known_column(name, columns, "keep.per").name for name in keep.per)
    _refuse_unknown_groups(keep.descending, per, rules, "keep.descending")
    return Keep(per, require_known_column(keep.best, columns, "keep.best").name, tuple(keep.descending), keep.rows)


def build_check(
    check: ChecksumSettings | None,
    keep: KeepSettings | None,
    columns: Mapping[str, FeedColumn],
    rules: Sequence[RuleSettings],
    feed: str,
) -> Check | None:
    """Converts the check of a table.

    Args:
        check: The settings of the check; None if there is none.
        keep: The limit of the table, which orders the rows for a CRC32.
        columns: The feed's columns by name.
        rules: The feed's rules.
        feed: The feed's name.

    Raises:
        ValueError: A column or group does not exist, or cannot be part of a CRC32.
    """
    if check is None:
        return None
    if check.crc32 is None:
        named = NamedCheck(feed, check.with_ or "", str(FilePath.cwd()))
        return Check(check.checksum, check.rows, named)
    if keep is None or len(keep.per) != 1:
        raise ValueError(
            "check.crc32: the best rows of each group are compared, so the feed needs keep with one column in per, as "
            "in keep: {per: [side], best: price, descending: [bid], rows: 1000}"
        )
    _refuse_unknown_groups(check.crc32.groups, keep.per, rules, "check.crc32.groups")
    for name in check.crc32.columns:
        column = require_known_column(name, columns, "check.crc32.columns")
        if column.sql != "string" and column.sql not in INTEGER_BITS:
            raise ValueError(
                f"check.crc32.columns: {name!r} is {column.sql}, which does not keep the digits as they were sent; "
                f"declare one more column for them, as in {name}_text: string, or {name}_text: {{type: string, "
                "from: digits} if messages have JSON numbers"
            )
    return Check(check.checksum, check.rows, check.crc32.build().load)


def _refuse_unknown_groups(
    groups: Collection[str], per: Sequence[str], rules: Sequence[RuleSettings], where: str
) -> None:
    """Raises ValueError if no row can be in one of the groups, because rows have only other constants."""
    known = _list_groups(per, rules)
    for name in groups:
        if known is not None and name not in known:
            near = get_close_matches(name, known, 1, 0.5)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"{where}: no row has {name!r} in {', '.join(per)}{hint} Rows have {', '.join(known)}")


def _list_groups(per: Sequence[str], rules: Sequence[RuleSettings]) -> list[str] | None:
    """Returns the constants that rules write into the columns `per`; None if a row takes its value from a message."""
    found: set[str] = set()
    for part in (part for rule in rules for part in rule.rows):
        for name in per:
            path = part.row.get(name) if isinstance(part.row, dict) else None
            texts = [one.text for one in path.alternatives if isinstance(one, Constant)] if path else []
            if path is None or len(texts) != len(path.alternatives):
                return None
            found |= {*texts}
    return sorted(found) or None

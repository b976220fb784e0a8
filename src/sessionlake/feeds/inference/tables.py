"""Finds where messages have rows, and the columns and key of these rows."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sessionlake.feeds.inference.kinds import KindGroup
from sessionlake.feeds.inference.sample import Sampled, Source, name_of, path_of
from sessionlake.feeds.inference.types import Inferred, infer_type
from sessionlake.feeds.inference.words import KEYS, OF_DELETE, SIDES, is_identifier, rank
from sessionlake.protocol.columns import BUILT_IN_COLUMNS
from sessionlake.protocol.names import fold_case

_MOST_ELEMENTS = 2_000
"""Number of elements of an array, over all messages, whose values decide about types."""
_MOST_COLUMNS = 60
_SIMILAR = 0.5
"""Least share of common fields of two kinds of elements that are rows of the same table."""
_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE]-?\d+)?")
_QUANTITY = re.compile(r"(^|_)(qty|quantity|size|amount|volume|sz|q|v)$", re.IGNORECASE)
_PRICE = re.compile(r"(^|_)(price|px)(_|$)", re.IGNORECASE)
_NO_KEY = ("array", "variant", "float", "double")
"""Types of columns that cannot be part of a key."""
_NUMBERS = ("bigint", "decimal", "double")
_LOCAL = re.compile(r"\w+")
_AT_INDEX = re.compile(r"^\[\d+\]\.")
Fields = dict[str, str]
"""Path of each column, by its name."""


@dataclass
class Table:
    """The rows of a sample.

    Attributes:
        kinds: Kinds of messages that have rows.
        columns: The columns of the rows.
        key: Columns that identify a row; empty if none is known.
        rows: For each kind, by its index in `kinds`, the entries of `rows` in its rule.
    """

    kinds: list[KindGroup]
    columns: dict[str, Inferred]
    key: list[str]
    rows: list[list[dict[str, Any]]] = field(default_factory=list)


def find_table(kinds: Sequence[KindGroup], session: Callable[[Sampled], Any], session_path: str | None) -> Table | None:
    """Returns the table to which most rows belong; None if the sample has no rows.

    Args:
        kinds: Kinds of messages.
        session: Returns the session of a message.
        session_path: Path of the session, which cannot be the whole key of a row; None if it is not in the message.
    """
    by_path = _group_elements_by_path(kinds)
    roles = {
        path: _find_roles(found) for path, (_, found) in by_path.items() if all(isinstance(one, list) for one in found)
    }
    roles = {path: one for path, one in roles.items() if one.numbers}
    if roles:
        return _with_usable_key(_find_table_of_levels(kinds, by_path, roles))
    objects = {path for path, (_, found) in by_path.items() if found and all(isinstance(one, dict) for one in found)}
    if objects:
        return _with_usable_key(_find_table_of_objects(kinds, by_path, objects))
    return _with_usable_key(_find_table_of_messages(kinds, session, session_path))


def _with_usable_key(table: Table | None) -> Table | None:
    """Returns the table with a key of columns that may be a key; None if no column may."""
    if table is None:
        return None
    usable = [name for name, column in table.columns.items() if not column.sql.startswith(_NO_KEY)]
    table.key = [name for name in table.key if name in usable] or usable[:1]
    return table if table.key else None


def _group_elements_by_path(kinds: Iterable[KindGroup]) -> dict[str, tuple[Source, list[Any]]]:
    """Returns the elements of each array in the sample, by path, with one source as an example."""
    found: dict[str, tuple[Source, list[Any]]] = {}
    for group in kinds:
        for one in group.messages:
            for source in one.sources:
                elements = found.setdefault(source.path, (source, []))[1]
                elements += source.elements[: max(0, _MOST_ELEMENTS - len(elements))]
    return found


# -- arrays of arrays, such as the levels of an order book


@dataclass
class _Roles:
    """Positions in an element that is an array."""

    side: int | None = None
    numbers: list[int] = field(default_factory=list)


def _find_table_of_levels(
    kinds: Sequence[KindGroup], by_path: dict[str, tuple[Source, list[Any]]], roles: dict[str, _Roles]
) -> Table:
    sided = {path for path in roles if by_path[path][0].name.lower() in SIDES or roles[path].side is not None}
    chosen = sided or {max(roles, key=lambda path: len(by_path[path][1]))}
    empty = {path for path, (source, found) in by_path.items() if not found and source.name.lower() in SIDES and sided}
    example = roles[max(chosen, key=lambda path: len(by_path[path][1]))]
    roles |= dict.fromkeys(empty, example)
    words = {str(item[r.side]) for path, r in roles.items() if r.side is not None for item in by_path[path][1]}
    names = ("price", "qty") if sided else tuple(f"c{number}" for number in range(len(example.numbers)))
    columns = {"side": Inferred("string")} if sided else {}
    for place, name in enumerate(names[: max(len(roles[path].numbers) for path in chosen)]):
        values = [item[roles[path].numbers[place]] for path in chosen for item in by_path[path][1]
                  if place < len(roles[path].numbers) and len(item) > roles[path].numbers[place]]  # fmt: skip
        columns[name] = infer_type("price" if sided else name, values, is_key=True, is_level=True)
    table = Table([], columns, ["side", "price"] if sided else ["c0"])
    for group in kinds:
        paths = _paths_of(group, chosen | empty)
        parts = [
            {"each": path, "row": _level_fields(by_path[raw][0].name, roles[raw], columns, words)}
            for raw, path in paths.items()
        ]
        if parts:
            table.kinds.append(group)
            table.rows.append(parts)
    return table


def _find_roles(elements: Sequence[list[Any]]) -> _Roles:
    roles = _Roles()
    width = min((len(item) for item in elements), default=0)
    for place in range(width):
        values = [item[place] for item in elements]
        if all(isinstance(value, str) and value.lower() in SIDES for value in values):
            roles.side = place if roles.side is None else roles.side
        elif all(_is_number(value) for value in values):
            roles.numbers.append(place)
    return roles


def _is_number(value: Any) -> bool:
    return (isinstance(value, str) and _NUMBER.fullmatch(value) is not None) or (
        not isinstance(value, bool | str) and value is not None
    )


def _level_fields(name: str, roles: _Roles, columns: Iterable[str], words: set[str]) -> Fields:
    fields: Fields = {}
    numbers = iter(roles.numbers)
    for column in columns:
        if column == "side":
            fields[column] = f"={_find_side_word(name, words)}" if roles.side is None else f".[{roles.side}]"
        elif (place := next(numbers, None)) is not None:
            fields[column] = f".[{place}]"
    return fields


def _find_side_word(name: str, words: set[str]) -> str:
    """Returns the word for a side: the one that messages use as a value, otherwise `bid` or `ask`."""
    side = SIDES[name.lower()]
    return next((word for word in sorted(words) if SIDES[word.lower()] == side), side)


def _paths_of(group: KindGroup, chosen: set[str]) -> dict[str, str]:
    """Returns the paths at which a kind has the chosen arrays, by a path of the sample.

    If messages are arrays, and the same field is in different elements of them, its path goes over all these elements.
    """
    found: dict[str, list[Source]] = defaultdict(list)
    for one in group.messages:
        for source in one.sources:
            if source.path in chosen:
                found[source.path].append(source)
    places = defaultdict(set)
    for path, sources in found.items():
        if sources[0].index is not None:
            places[sources[0].name].add(path)
    if all(len(paths) < 2 for paths in places.values()):  # noqa: PLR2004 - two places of one field
        return {path: path for path in found}
    indices = [source.index for sources in found.values() for source in sources if source.index is not None]
    first, end = min(index for index, _ in indices), max(index - length for index, length in indices) + 1
    part = f"[{first}:{end}]" if end < 0 else f"[{first}:]"
    return {min(paths): f"{part}[*].{_AT_INDEX.sub('', min(paths))}" for paths in places.values()}


# -- arrays of objects


def _find_table_of_objects(
    kinds: Sequence[KindGroup], by_path: dict[str, tuple[Source, list[Any]]], objects: set[str]
) -> Table:
    forms = {path: {name for item in by_path[path][1] for name in item} for path in objects}
    sided = {path for path in objects if by_path[path][0].name.lower() in SIDES}
    main = max(sided or objects, key=lambda path: (len(by_path[path][1]), -len(path)))
    chosen = {path for path in sided or objects if _compute_likeness(forms[path], forms[main]) >= _SIMILAR}
    empty = {path for path, (source, found) in by_path.items() if not found and source.name.lower() in SIDES and sided}
    elements = [item for path in chosen for item in by_path[path][1]]
    fields, columns = columns_of(elements, taken=("side",) if sided else ())
    groups = [found for path in chosen for found in _count_elements_per_message(kinds, path)]
    key = _key_of(fields, groups)
    if sided:
        columns = {"side": Inferred("string"), **columns}
        key = ["side", *key]
    columns |= {name: _try_as_key(name, fields, columns, elements) for name in key if name in fields}
    table = Table([], columns, key)
    for group in kinds:
        parts: list[dict[str, Any]] = []
        for raw, path in _paths_of(group, chosen | empty).items():
            side = {"side": f"={SIDES[by_path[raw][0].name.lower()]}"} if sided else {}
            parts.append({"each": path, "row": propose_row_setting(fields, side)})
        if parts:
            table.kinds.append(group)
            table.rows.append(parts)
    return table


def _compute_likeness(one: set[str], other: set[str]) -> float:
    return len(one & other) / max(1, len(one | other))


def _count_elements_per_message(kinds: Iterable[KindGroup], path: str) -> list[list[Any]]:
    found = [source.elements for group in kinds for one in group.messages for source in one.sources if
             source.path == path]  # fmt: skip
    return found[:_MOST_ELEMENTS]


def propose_row_setting(fields: Fields, constants: Fields) -> Fields | str:
    """Returns the setting `row`: `all` if each column has the name of its field."""
    if not constants and all(path == f".{name}" for name, path in fields.items()):
        return "all"
    return {**constants, **fields}


def columns_of(elements: Sequence[Any], taken: Sequence[str] = ()) -> tuple[Fields, dict[str, Inferred]]:
    """Returns paths and types of the columns of elements that are objects. Objects in them give columns, too."""
    values: dict[str, list[Any]] = {}
    for item in elements:
        for name, value in item.items():
            below = path_of("", name)
            if below is None:
                continue
            if isinstance(value, dict) and value and not any(isinstance(v, dict | list) for v in value.values()):
                for inner, deep in value.items():
                    if (path := path_of(f".{below}", inner)) is not None:
                        values.setdefault(path, []).append(deep)
            else:
                values.setdefault(f".{below}", []).append(value)
    fields: Fields = {}
    columns: dict[str, Inferred] = {}
    for path, found in [*values.items()][:_MOST_COLUMNS]:
        name = column_name(path, {*fields, *taken})
        fields[name], columns[name] = path, infer_type(name, found)
    return fields, columns


def column_name(path: str, taken: Iterable[str]) -> str:
    """Returns a valid column name for a field that no other column has."""
    parts = [re.sub(r"\W", "_", part.strip('"')) for part in path.strip(".").split(".")]
    name = re.sub(r"^(\d)", r"_\1", "_".join(parts).strip("_")) or "value"
    used = {fold_case(one) for one in (*taken, *BUILT_IN_COLUMNS)}
    if fold_case(name) in used:
        name = f"sent_{name}"
    return name if fold_case(name) not in used else f"{name}_{len(used)}"


def _try_as_key(name: str, fields: Fields, columns: dict[str, Inferred], elements: Sequence[Any]) -> Inferred:
    """Returns the type of a column that is part of the key, which may not be a double or variant."""
    if not columns[name].sql.startswith(_NO_KEY):
        return columns[name]
    source = fields[name].removeprefix(".").strip('"')
    return infer_type(name, [item.get(source) for item in elements], is_key=True)


def _key_of(fields: Fields, groups: Sequence[Sequence[Any]]) -> list[str]:
    """Returns the column whose values are different in each message; two columns if one is not enough."""
    direct = {name: path[1:].strip('"') for name, path in fields.items() if path.count(".") == 1}
    price = next((name for name in direct if _PRICE.search(name)), None)
    if "side" in direct and price is not None and not any(name in direct for name in ("id", "uuid", "order_id")):
        return ["side", price]
    usable = {name: raw for name, raw in direct.items() if _is_usable(raw, groups)}
    order = sorted(usable, key=lambda name: (-rank(name, KEYS), not is_identifier(name)))
    good = [name for name in order if rank(name, KEYS) or is_identifier(name)]
    candidates = [[name] for name in good] + [[a, b] for a in good for b in order if a != b]
    for names in candidates + [[name] for name in order]:
        if all(_are_distinct([usable[name] for name in names], items) for items in groups):
            return names
    return order[:1] or [*fields][:1]


def _is_usable(name: str, groups: Sequence[Sequence[Any]]) -> bool:
    return all(item.get(name) is not None and not isinstance(item[name], dict | list | bool)
               for items in groups for item in items)  # fmt: skip


def _are_distinct(names: Sequence[str], items: Sequence[Any]) -> bool:
    return len({tuple(str(item[name]) for name in names) for item in items}) == len(items)


# -- messages that are rows themselves


def _find_table_of_messages(
    kinds: Sequence[KindGroup], session: Callable[[Sampled], Any], session_path: str | None
) -> Table | None:
    """Returns the table whose rows are the messages of the most frequent kind, and of similar ones."""
    objects = [group for group in kinds if isinstance(group.messages[0].value, dict)]
    if not objects:
        return None
    names = [{path for one in group.messages for path in one.scalars} for group in objects]
    main = max(range(len(objects)), key=lambda number: len(objects[number].messages))
    chosen = [
        group for number, group in enumerate(objects) if _compute_likeness(names[number], names[main]) >= _SIMILAR
    ]
    messages = [one for group in chosen for one in group.messages]
    fields, columns = columns_of([one.value for one in messages])
    if not fields:
        return None
    key = _find_key_of_messages(fields, messages, session, session_path)
    columns |= {name: _try_as_key(name, fields, columns, [one.value for one in messages]) for name in key}
    row = propose_row_setting(fields, {})
    return Table(chosen, columns, key, [[{"row": row}] for _ in chosen])


def _find_key_of_messages(
    fields: Fields, messages: Sequence[Sampled], session: Callable[[Sampled], Any], session_path: str | None
) -> list[str]:
    """Returns the column that identifies a row: one that repeats in a session; without one, the session itself."""
    counts: defaultdict[str, Counter[Any]] = defaultdict(Counter)
    for one in messages:
        for name, path in fields.items():
            value = one.scalars.get(path[1:])
            if value is not None and not isinstance(value, bool):
                counts[name][session(one), value] += 1
    complete = [name for name, found in counts.items() if found.total() == len(messages)]
    named = sorted(
        (name for name in complete if fields[name] != f".{session_path}" and rank(name_of(fields[name]), KEYS)),
        key=lambda name: -rank(name_of(fields[name]), KEYS),
    )
    own = [name for name in complete if fields[name] == f".{session_path}"]
    identifying = [name for name in complete if is_identifier(name) and name not in own]
    if own:
        repeating = [name for name in named if len(counts[name]) < len(messages)]
        return repeating[:1] or own
    return (named or identifying or complete or [*fields])[:1]


def find_deleting_values(table: Table, kind: KindGroup, parts: Sequence[dict[str, Any]]) -> dict[str, Any] | bool:
    """Returns the setting `delete` for updates of a kind: values that mark a deleted row; False if there are none."""
    if OF_DELETE.search(kind.label):
        return True
    numbers = [name for name, column in table.columns.items() if column.sql.startswith(_NUMBERS)]
    quantity = next((name for name in numbers if _QUANTITY.search(name) and name not in table.key), None)
    has_it = all("each" in part and (part["row"] == "all" or quantity in part["row"]) for part in parts)
    if quantity is not None and "side" in table.key and has_it:
        return {quantity: 0}
    for name in (name for name, column in table.columns.items() if column.sql == "string"):
        words = sorted(word for word in _texts_of(kind, name) if OF_DELETE.search(word) and _LOCAL.fullmatch(word))
        if words and len(_texts_of(kind, name)) <= len(KEYS):
            return {name: words[0]}
    return False


def _texts_of(kind: KindGroup, name: str) -> set[str]:
    """Returns the texts that elements of a kind have in a field."""
    found = set()
    for one in kind.messages[:_MOST_ELEMENTS]:
        items = [item for source in one.sources for item in source.elements if isinstance(item, dict)] or [one.value]
        found |= {item[name] for item in items if isinstance(item, dict) and isinstance(item.get(name), str)}
    return found

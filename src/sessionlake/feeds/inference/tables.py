"""Finds where messages have rows, and the columns and key of these rows."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from sessionlake.feeds.inference.arrays import (
    MOST_ELEMENTS,
    ArrayPlace,
    ElementsOfArrays,
    PathsOfColumns,
    ProposedTable,
    choose_word_for_book_side,
    collect_elements_of_arrays,
    find_empty_arrays_of_book_sides,
    find_rule_path_of_each_array,
    is_named_as_book_side,
)
from sessionlake.feeds.inference.kinds import MessageKindGroup
from sessionlake.feeds.inference.levels import find_level_positions, propose_table_of_book_levels
from sessionlake.feeds.inference.sample import SampledMessage, build_path_of_field, get_field_name
from sessionlake.feeds.inference.types import InferredColumnType, infer_column_type
from sessionlake.feeds.inference.words import (
    KEYS,
    OF_BOOK,
    OF_CHANGE,
    OF_DELETE,
    OF_PRICE,
    OF_QUANTITY,
    SIDES,
    is_name_of_identifier,
    rank_field_name,
)
from sessionlake.protocol.columns import BUILT_IN_COLUMNS
from sessionlake.protocol.names import fold_case

_MOST_COLUMNS = 60
_SIMILAR = 0.5
"""Least share of common fields of two kinds of elements that are rows of the same table."""
_NO_KEY = ("array", "variant", "float", "double")
"""Types of columns that cannot be part of a key."""
_NUMBERS = ("bigint", "decimal", "double")
_LOCAL = re.compile(r"\w+")


def find_table_with_most_rows(
    kinds: Sequence[MessageKindGroup], get_session: Callable[[SampledMessage], Any], session_path: str | None
) -> ProposedTable | None:
    """Returns the table to which most rows belong; None if the sample has no rows.

    Args:
        kinds: Kinds of messages.
        get_session: Returns the session of a message.
        session_path: Path of the session, which cannot be the whole key of a row; None if it is not in the message.
    """
    found = collect_elements_of_arrays(kinds)
    roles = {
        place: find_level_positions(elements)
        for place, (_, elements) in found.items()
        if all(isinstance(one, list) for one in elements)
    }
    roles = {place: one for place, one in roles.items() if one.numbers}
    objects = {place for place, (_, items) in found.items() if items and all(isinstance(one, dict) for one in items)}
    is_book = any(is_named_as_book_side(found[place][0]) or one.side is not None for place, one in roles.items())
    if is_book or (roles and not any(is_named_as_book_side(found[place][0]) for place in objects)):
        return _restrict_key_to_usable_columns(propose_table_of_book_levels(kinds, found, roles))
    if objects:
        return _restrict_key_to_usable_columns(_find_table_of_objects_in_arrays(kinds, found, objects))
    return _restrict_key_to_usable_columns(_find_table_of_messages(kinds, get_session, session_path))


def _restrict_key_to_usable_columns(table: ProposedTable | None) -> ProposedTable | None:
    """Returns the table with a key of columns whose type allows it, or None if there is none. Changes the table."""
    if table is None:
        return None
    usable = [name for name, column in table.columns.items() if not column.sql.startswith(_NO_KEY)]
    table.key = [name for name in table.key if name in usable] or usable[:1]
    return table if table.key else None


def _find_table_of_objects_in_arrays(
    kinds: Sequence[MessageKindGroup], elements: ElementsOfArrays, object_arrays: set[ArrayPlace]
) -> ProposedTable:
    """Returns the table whose rows are the objects in some arrays. `object_arrays` has the places of these arrays."""
    forms = {place: {name for item in elements[place][1] for name in item} for place in object_arrays}
    sided = {place for place in object_arrays if is_named_as_book_side(elements[place][0])}
    main = max(sided or object_arrays, key=lambda place: (len(elements[place][1]), -len(place[1])))
    chosen = {place for place in sided or object_arrays if _are_rows_of_same_table(forms[place], forms[main])}
    empty = (
        find_empty_arrays_of_book_sides(elements, chosen) if sided else _find_empty_arrays_of_changes(elements, chosen)
    )
    items = [item for place in sorted(chosen) for item in elements[place][1]]
    fields, columns = infer_columns_of_objects(items, taken_names=("side",) if sided else ())
    key = _find_key_columns(fields, [found for place in chosen for found in _list_elements_per_message(kinds, place)])
    if sided:
        columns = {"side": InferredColumnType("string"), **columns}
        key = ["side", *key]
    columns |= {name: _infer_type_of_key_column(name, fields, columns, items) for name in key if name in fields}
    table = ProposedTable([], columns, key)
    single = _find_kinds_of_single_rows(kinds, fields) if sided else {}
    words = {str(one.scalars["side"]) for group in single.values() for one in group.messages}
    for number, group in enumerate(kinds):
        parts: list[dict[str, Any]] = []
        paths = find_rule_path_of_each_array(group, {path for kind, path in chosen | empty if kind == number})
        for raw, path in paths.items():
            side = {"side": f"={choose_word_for_book_side(elements[number, raw][0].name, words)}"} if sided else {}
            parts.append({"each": path, "row": propose_row_setting(fields, side)})
        if not parts and number in single:
            parts = [{"row": {"side": "side", **{name: path[1:] for name, path in fields.items()}}}]
        if parts:
            table.kinds.append(group)
            table.rows.append(parts)
    return table


def _find_empty_arrays_of_changes(elements: ElementsOfArrays, chosen: set[ArrayPlace]) -> set[ArrayPlace]:
    """Returns arrays without elements, beside arrays of rows, that are named as a change, such as `insert`."""
    beside = {(number, path.rpartition(".")[0]) for number, path in chosen}
    return {
        (number, path)
        for (number, path), (source, found) in elements.items()
        if not found and (number, path.rpartition(".")[0]) in beside and OF_CHANGE.fullmatch(source.name)
    }


def _find_kinds_of_single_rows(
    kinds: Sequence[MessageKindGroup], fields: PathsOfColumns
) -> dict[int, MessageKindGroup]:
    """Returns kinds whose messages are one row each, with a side and all fields that rows in arrays have."""
    wanted = {"side", *(path[1:] for path in fields.values())}
    return {
        number: group
        for number, group in enumerate(kinds)
        if OF_BOOK.search(group.label)
        and all(wanted <= one.scalars.keys() and str(one.scalars["side"]).lower() in SIDES for one in group.messages)
    }


def _are_rows_of_same_table(field_names: set[str], main_field_names: set[str]) -> bool:
    """Returns True if elements with these fields are rows of the same table as the main elements.

    Most of their fields are the same, or all of them are fields of the main elements, as in a deleted row.
    """
    return _compute_share_of_common_names(field_names, main_field_names) >= _SIMILAR or (
        len(field_names) > 1 and field_names <= main_field_names
    )


def _compute_share_of_common_names(names: set[str], other_names: set[str]) -> float:
    """Returns the share of the names in either set that are in both."""
    return len(names & other_names) / max(1, len(names | other_names))


def _list_elements_per_message(kinds: Sequence[MessageKindGroup], array_place: ArrayPlace) -> list[list[Any]]:
    """Returns the elements that messages of a kind have in an array, one list for each message."""
    number, path = array_place
    found = [source.elements for one in kinds[number].messages for source in one.sources if source.path == path]
    return found[:MOST_ELEMENTS]


def propose_row_setting(fields: PathsOfColumns, constants: PathsOfColumns) -> PathsOfColumns | str:
    """Returns the setting `row`: the path of each column, or `all` if each column has the name of its field."""
    if not constants and all(path == f".{name}" for name, path in fields.items()):
        return "all"
    return {**constants, **fields}


def infer_columns_of_objects(
    objects: Sequence[Any], taken_names: Sequence[str] = ()
) -> tuple[PathsOfColumns, dict[str, InferredColumnType]]:
    """Returns paths and types of the columns of elements that are objects. Objects in them give columns, too."""
    values: dict[str, list[Any]] = {}
    for item in objects:
        for name, value in item.items():
            below = build_path_of_field("", name)
            if below is None:
                continue
            if isinstance(value, dict) and value and not any(isinstance(v, dict | list) for v in value.values()):
                for inner, deep in value.items():
                    if (path := build_path_of_field(f".{below}", inner)) is not None:
                        values.setdefault(path, []).append(deep)
            else:
                values.setdefault(f".{below}", []).append(value)
    fields: PathsOfColumns = {}
    columns: dict[str, InferredColumnType] = {}
    for path, found in [*values.items()][:_MOST_COLUMNS]:
        name = build_valid_column_name(path, {*fields, *taken_names})
        fields[name], columns[name] = path, infer_column_type(name, found)
    return fields, columns


def build_valid_column_name(path: str, taken_names: Iterable[str]) -> str:
    """Returns a valid column name, made from the path of a field. It differs from all names in `taken_names`."""
    parts = [re.sub(r"\W", "_", part.strip('"')) for part in path.strip(".").split(".")]
    name = re.sub(r"^(\d)", r"_\1", "_".join(parts).strip("_")) or "value"
    used = {fold_case(one) for one in (*taken_names, *BUILT_IN_COLUMNS)}
    if fold_case(name) in used:
        name = f"sent_{name}"
    return name if fold_case(name) not in used else f"{name}_{len(used)}"


def _infer_type_of_key_column(
    column_name: str, fields: PathsOfColumns, columns: dict[str, InferredColumnType], elements: Sequence[Any]
) -> InferredColumnType:
    """Returns the type of a key column. Values that would give a double or variant get a type that a key allows."""
    if not columns[column_name].sql.startswith(_NO_KEY):
        return columns[column_name]
    source = fields[column_name].removeprefix(".").strip('"')
    return infer_column_type(column_name, [item.get(source) for item in elements], is_key=True)


def _find_key_columns(fields: PathsOfColumns, groups: Sequence[Sequence[Any]]) -> list[str]:
    """Returns the names of the columns that identify a row: one column, or two if one is not enough.

    Args:
        fields: Path of each column in an element.
        groups: For each message, the elements in which the values of the key must be different.
    """
    direct = {name: path[1:].strip('"') for name, path in fields.items() if path.count(".") == 1}
    price = next((name for name in direct if OF_PRICE.search(name)), None)
    if "side" in direct and price is not None and not any(name in direct for name in ("id", "uuid", "order_id")):
        return ["side", price]
    usable = {name: raw for name, raw in direct.items() if _can_field_be_in_key(raw, groups)}
    order = sorted(usable, key=lambda name: (-rank_field_name(name, KEYS), not is_name_of_identifier(name)))
    good = [name for name in order if rank_field_name(name, KEYS) or is_name_of_identifier(name)]
    candidates = [[name] for name in good] + [[a, b] for a in good for b in order if a != b]
    for names in candidates + [[name] for name in order]:
        if all(_are_values_distinct([usable[name] for name in names], items) for items in groups):
            return names
    return order[:1] or [*fields][:1]


def _can_field_be_in_key(field_name: str, groups: Sequence[Sequence[Any]]) -> bool:
    """Returns True if all elements have a single value in this field that is neither null nor a boolean."""
    return all(item.get(field_name) is not None and not isinstance(item[field_name], dict | list | bool)
               for items in groups for item in items)  # fmt: skip


def _are_values_distinct(field_names: Sequence[str], items: Sequence[Any]) -> bool:
    return len({tuple(str(item[name]) for name in field_names) for item in items}) == len(items)


# -- messages that are rows themselves


def _find_table_of_messages(
    kinds: Sequence[MessageKindGroup], get_session: Callable[[SampledMessage], Any], session_path: str | None
) -> ProposedTable | None:
    """Returns the table whose rows are the messages of the most frequent kind, and of similar ones."""
    objects = [group for group in kinds if isinstance(group.messages[0].value, dict)]
    if not objects:
        return None
    names = [{path for one in group.messages for path in one.scalars} for group in objects]
    main = max(range(len(objects)), key=lambda number: len(objects[number].messages))
    chosen = [
        group
        for number, group in enumerate(objects)
        if _compute_share_of_common_names(names[number], names[main]) >= _SIMILAR
    ]
    messages = [one for group in chosen for one in group.messages]
    fields, columns = infer_columns_of_objects([one.value for one in messages])
    if not fields:
        return None
    key = _find_key_of_messages(fields, messages, get_session, session_path)
    columns |= {name: _infer_type_of_key_column(name, fields, columns, [one.value for one in messages]) for name in key}
    row = propose_row_setting(fields, {})
    return ProposedTable(chosen, columns, key, [[{"row": row}] for _ in chosen])


def _find_key_of_messages(
    fields: PathsOfColumns,
    messages: Sequence[SampledMessage],
    get_session: Callable[[SampledMessage], Any],
    session_path: str | None,
) -> list[str]:
    """Returns the column that identifies a row: one that repeats in a session; without one, the session itself."""
    counts: defaultdict[str, Counter[Any]] = defaultdict(Counter)
    for one in messages:
        for name, path in fields.items():
            value = one.scalars.get(path[1:])
            if value is not None and not isinstance(value, bool):
                counts[name][get_session(one), value] += 1
    complete = [name for name, found in counts.items() if found.total() == len(messages)]
    named = sorted(
        (
            name
            for name in complete
            if fields[name] != f".{session_path}" and rank_field_name(get_field_name(fields[name]), KEYS)
        ),
        key=lambda name: -rank_field_name(get_field_name(fields[name]), KEYS),
    )
    own = [name for name in complete if fields[name] == f".{session_path}"]
    identifying = [name for name in complete if is_name_of_identifier(name) and name not in own]
    if own:
        repeating = [name for name in named + identifying if len(counts[name]) < len(messages)]
        return repeating[:1] or own
    return (named or identifying or complete or [*fields])[:1]


def find_delete_setting(
    table: ProposedTable, kind: MessageKindGroup, row_settings: Sequence[dict[str, Any]]
) -> dict[str, Any] | bool:
    """Returns the setting `delete` for updates of a kind: values that mark a deleted row; False if there are none."""
    if OF_DELETE.search(kind.label):
        return True
    numbers = [name for name, column in table.columns.items() if column.sql.startswith(_NUMBERS)]
    quantity = next((name for name in numbers if OF_QUANTITY.search(name) and name not in table.key), None)
    has_it = all("each" in part if part["row"] == "all" else quantity in part["row"] for part in row_settings)
    if quantity is not None and "side" in table.key and has_it:
        return {quantity: 0}
    for name in (name for name, column in table.columns.items() if column.sql == "string"):
        words = sorted(
            word for word in _list_texts_in_field(kind, name) if OF_DELETE.search(word) and _LOCAL.fullmatch(word)
        )
        if words and len(_list_texts_in_field(kind, name)) <= len(KEYS):
            return {name: words[0]}
    return False


def _list_texts_in_field(kind: MessageKindGroup, field_name: str) -> set[str]:
    """Returns the texts that rows of a kind have in the field `field_name`."""
    found = set()
    for one in kind.messages[:MOST_ELEMENTS]:
        items = [item for source in one.sources for item in source.elements if isinstance(item, dict)] or [one.value]
        found |= {
            item[field_name] for item in items if isinstance(item, dict) and isinstance(item.get(field_name), str)
        }
    return found

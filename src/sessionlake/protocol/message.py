"""The four message types as typed structs, made for the declared columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Union

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from sessionlake.protocol.columns import Column, Kind

INT64_MAX = 2**63 - 1
INT64_MIN = -(2**63)
MAX_ID_BYTES = 1024
MAX_KEY_BYTES = 256
MAX_DEPTH = 64

Seq = Annotated[int, Meta(ge=0, le=INT64_MAX)]
Ts = Annotated[int, Meta(ge=INT64_MIN, le=INT64_MAX)]
# A string of n characters has at most 4n bytes, so 256 characters always fit; longer ids take the slow path.
RowId = Annotated[str, Meta(min_length=1, max_length=MAX_ID_BYTES // 4)]


class MessageType(IntEnum):
    """Message types as chunks carry them; MALFORMED never leaves quarantine."""

    MALFORMED = -1
    SNAPSHOT = 0
    UPDATE = 1
    HEARTBEAT = 2
    END = 3


class _Message(Struct, tag_field="type", gc=False, forbid_unknown_fields=True):
    seq: Seq
    ts: Ts


class Heartbeat(_Message, tag="heartbeat", gc=False):
    """Nothing changed; the session lives."""

    code: ClassVar[int] = MessageType.HEARTBEAT
    rows: ClassVar[Sequence[Any]] = ()
    deleted: ClassVar[Sequence[str]] = ()


class End(_Message, tag="end", gc=False):
    """The session is over."""

    code: ClassVar[int] = MessageType.END
    rows: ClassVar[Sequence[Any]] = ()
    deleted: ClassVar[Sequence[str]] = ()


Message = Any  # Snapshot | Update | Heartbeat | End; the first two are made for the declared columns


@dataclass(frozen=True)
class MessageTypes:
    """The structs for one set of declared columns.

    Attributes:
        columns: the declared columns; row attribute `c<i>` holds the i-th, UNSET where the row lacks it.
        decoder: accepts exactly the messages that need no second look: declared fields only, each of its type.
    """

    columns: tuple[Column, ...]
    row: type[Struct]
    snapshot: type[Struct]
    update: type[Struct]
    decoder: msgspec.json.Decoder[Any]


@lru_cache(maxsize=8)
def message_types(columns: tuple[Column, ...]) -> MessageTypes:
    """Makes the structs and their decoder, once for each set of columns."""
    fields: list[tuple[str, Any, Any]] = [
        (f"c{i}", Union[_value_type(column), None, UnsetType], UNSET)  # noqa: UP007 - built at run time
        for i, column in enumerate(columns)
    ]
    names = {f"c{i}": column.name for i, column in enumerate(columns)}
    row = msgspec.defstruct(
        "Row", [("id", RowId), *fields], gc=False, forbid_unknown_fields=True, rename=names, module=__name__
    )
    rows = list[row]  # type: ignore[valid-type]
    snapshot = msgspec.defstruct(
        "Snapshot",
        [("rows", rows)],
        bases=(_Message,),
        namespace={"code": MessageType.SNAPSHOT, "deleted": (), "__annotations__": {"code": ClassVar[int]}},
        tag="snapshot",
        tag_field="type",
        gc=False,
        forbid_unknown_fields=True,
        module=__name__,
    )
    update = msgspec.defstruct(
        "Update",
        [
            ("rows", rows, msgspec.field(default_factory=list)),
            ("deleted", list[RowId], msgspec.field(default_factory=list)),
        ],
        bases=(_Message,),
        namespace={"code": MessageType.UPDATE},
        tag="update",
        tag_field="type",
        gc=False,
        forbid_unknown_fields=True,
        module=__name__,
    )
    decoder = msgspec.json.Decoder(Union[snapshot, update, Heartbeat, End])  # noqa: UP007 - built at run time
    return MessageTypes(columns, row, snapshot, update, decoder)


def _value_type(column: Column) -> Any:
    if column.kind is Kind.BOOLEAN:
        return bool
    if column.kind is Kind.INTEGER:
        top = 2 ** (column.bits - 1)
        return Annotated[int, Meta(ge=-top, le=top - 1)]
    return float if column.kind is Kind.NUMBER else str

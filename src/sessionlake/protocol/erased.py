"""What `bronze.messages` keeps of an erased message: a placeholder with the offset and the Kafka timestamp.

So offsets stay without gaps, and stream time does not change. No session can have the placeholder's key, because it has
a control character. If a producer sends a message with this key and no value, nothing is lost by ignoring it.

If sessions share chains, the placeholder also keeps the message's places in its chains as its value. Without them, the
other sessions of the chain would have a gap.

If a message has other sessions, too, only the session's parts are erased. A header then marks the message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

ERASED_KEY = b"\0erased"
"""The key of a placeholder. Its value is null or has places in chains. Its headers are null."""
ERASED_CODE = -1
"""Code of an erased message in a chunk's column `reason`. Such a message does not go to quarantine."""
PARTS_ERASED_HEADER = "sessionlake.erased"
"""Name of the header, without a value, of messages of which only some sessions' parts are erased."""


class ChainPlace(msgspec.Struct, frozen=True, array_like=True):
    """The place of a message in a chain.

    Attributes:
        chain: Name of the chain.
        seq: The last seq that the message covers.
        after: The seq after which it follows; None if it follows any.
        is_link: True if there is also a gap if `after` is below the chain's last seq.
        restart: True if the chain starts again at the message.
        is_heartbeat: True if all that the message says in this chain is a heartbeat.
    """

    chain: str
    seq: int
    after: int | None
    is_link: bool
    restart: bool
    is_heartbeat: bool


_decoder = msgspec.json.Decoder(list[ChainPlace])


def find_placeholders_of_erased_messages(keys: Any, values: Any) -> Any:
    """Returns a boolean array that is true for placeholders of erased messages, by their keys and values. No nulls."""
    has_key = pc.equal(keys, pa.scalar(ERASED_KEY, pa.binary()))
    has_value = pc.or_(pc.is_null(values), pc.fill_null(pc.starts_with(values, ERASED_KEY), fill_value=False))
    return pc.fill_null(pc.and_(has_key, has_value), fill_value=False)


def encode_chain_places(places: Sequence[ChainPlace]) -> bytes | None:
    """Returns the value of a placeholder that keeps these places; None if there are none."""
    return ERASED_KEY + msgspec.json.encode(places) if places else None


def decode_chain_places(value: bytes | None) -> list[ChainPlace]:
    """Returns the places in chains that a placeholder's value keeps; none if the value is not of that form."""
    try:
        return [] if value is None else _decoder.decode(value.removeprefix(ERASED_KEY))
    except msgspec.DecodeError:
        return []

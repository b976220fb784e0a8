"""Removes a session's parts from the JSON text of a message that has other sessions, too."""

from __future__ import annotations

from sessionlake.feeds.events import MessageRefusal
from sessionlake.feeds.feed import Feed
from sessionlake.feeds.interpret import find_session_of_each_part
from sessionlake.feeds.json_spans import JsonMessageParts
from sessionlake.feeds.message_fields import RefusedMessageError
from sessionlake.feeds.payload import PayloadReader
from sessionlake.feeds.reader import KafkaRecord, parse_record_for_paths
from sessionlake.protocol.payload import PayloadFormat


class PartsNotRemovableError(ValueError):
    """A session cannot be removed from a message. The text says why."""


def blank_session_parts(
    feed: Feed, record: KafkaRecord, session_id: str, payload: PayloadReader | None = None
) -> bytes:
    """Returns the message's value with spaces in place of a session's parts; all other bytes stay as they are.

    So the value keeps its length, on which limits of bytes depend.

    Args:
        feed: The feed that reads the message.
        record: The message, which the feed must be able to read.
        session_id: Id of the session.
        payload: Reads Avro keys; required if `feed.reads_avro_or_protobuf`.

    Raises:
        NotRemovableError: It is not known which bytes are the session's.
    """
    if feed.decoder is not None:
        raise PartsNotRemovableError("a decoder class reads it, so nobody knows which of its bytes are the session's")
    if feed.format is not PayloadFormat.JSON or record.value is None:
        raise PartsNotRemovableError(f"it is {feed.format.value}; only from JSON can a part be removed")
    place = parse_record_for_paths(feed, record, payload)
    if isinstance(place, MessageRefusal):
        raise PartsNotRemovableError(f"it cannot be read any more: {place.why}")
    try:
        split, sessions = find_session_of_each_part(feed, place)
    except RefusedMessageError as error:
        raise PartsNotRemovableError(f"it cannot be read any more: {error}") from None
    found = None if split is None else JsonMessageParts.find_message_parts(record.value, split)
    if found is None or len(found.parts) != len(sessions):
        raise PartsNotRemovableError("its parts are not in its value")
    return found.overwrite_parts_with_spaces([one == session_id for one in sessions])

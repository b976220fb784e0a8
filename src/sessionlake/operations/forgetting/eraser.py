"""Erases a session in messages that feeds read: what bronze keeps of each message instead.

- A message of this session alone becomes a placeholder. If its feed has chains, the placeholder keeps its places in
  them, so that the other sessions of a chain have no gap.
- From a message with other sessions, the session's parts are removed. All else stays, byte for byte. The message is
  decoded again, which must give the same for the other sessions as before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.feeds.chunks import DecodedMessageParts, FeedDecoder, select_kafka_records
from sessionlake.feeds.part_removal import PartsNotRemovableError, blank_session_parts
from sessionlake.feeds.payload import PayloadReader
from sessionlake.feeds.reader import KafkaRecordColumns, find_feed_of_topic
from sessionlake.operations.forgetting.chain_places import list_chain_places_by_message
from sessionlake.protocol.erased import ChainPlace, encode_chain_places
from sessionlake.protocol.types import Int64s, Row
from sessionlake.silver.fold.pack import convert_times_to_milliseconds


@dataclass(frozen=True)
class ErasedMessages:
    """What is left of the messages of a session.

    Attributes:
        message: Index of each message in the batch.
        value: The new value of each message.
        is_shared: For each message, whether it also has other sessions, so that its key and headers stay.
        refused: Why a message cannot be erased, by its index in the batch; such a message has no value.
    """

    message: Int64s
    value: list[bytes | None]
    is_shared: list[bool]
    refused: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SessionEraser:
    """Erases a session in messages of its topic. Pure, so it runs in Spark's workers and without Spark.

    Attributes:
        decoder: Decodes the messages.
        session: Id of the session.
    """

    decoder: FeedDecoder
    session: str

    def find_messages_of_session(self, messages: pa.RecordBatch) -> tuple[Int64s, list[bool]]:
        """Returns the indices of the session's messages, and for each whether it also has other sessions.

        Args:
            messages: With the columns of `bronze.messages` that silver reads.
        """
        parts = self.decoder.decode(convert_times_to_milliseconds(pa.Table.from_batches([messages])))
        return self._select_messages_of_session(parts)

    def _select_messages_of_session(self, parts: DecodedMessageParts) -> tuple[Int64s, list[bool]]:
        sessions = parts.chunk["session_id"]
        is_own = self._mask_parts_of_session(parts.chunk)
        own = np.unique(parts.message[is_own])
        shared = {*parts.message[pc.is_valid(sessions).to_numpy() & ~is_own].tolist()}
        return own, [message in shared for message in own.tolist()]

    def erase_session_in_messages(self, messages: pa.RecordBatch) -> ErasedMessages:
        """Erases the session in all messages that have it.

        Args:
            messages: With the columns of `bronze.messages` that silver reads.
        """
        raw = convert_times_to_milliseconds(pa.Table.from_batches([messages]))
        parts = self.decoder.decode(raw)
        own, is_shared = self._select_messages_of_session(parts)
        before = list_chain_places_by_message(parts)
        values = {message: encode_chain_places(before.get(message, ())) for message in own.tolist()}
        shared = own[np.array(is_shared, np.bool_)]
        removed, refused = self._remove_session_from_shared_messages(select_kafka_records(raw, shared), shared)
        values |= removed
        refused |= self._explain_unsafe_rewrites(raw, parts, before, removed)
        return ErasedMessages(own, [values[message] for message in own.tolist()], is_shared, refused)

    def _mask_parts_of_session(self, chunk: pa.Table) -> Any:
        return pc.fill_null(pc.equal(chunk["session_id"], self.session), fill_value=False).to_numpy()

    def _remove_session_from_shared_messages(
        self, records: KafkaRecordColumns, shared: Int64s
    ) -> tuple[dict[int, bytes | None], dict[int, str]]:
        """Returns the new values of shared messages, and the reasons of those that cannot be changed, by index.

        Args:
            records: The shared messages.
            shared: The index of each in the batch.
        """
        payload = None if self.decoder.payload is None else PayloadReader(self.decoder.payload)
        removed, refused = dict[int, bytes | None](), dict[int, str]()
        for place, number in enumerate(shared.tolist()):
            record = records.get_record(place)
            feed = find_feed_of_topic(self.decoder.feeds, record.topic)
            if feed is None:
                raise ValueError(f"no feed reads topic {record.topic}")
            try:
                removed[number] = blank_session_parts(feed, record, self.session, payload)
            except PartsNotRemovableError as error:
                removed[number], refused[number] = None, str(error)
        return removed, refused

    def _explain_unsafe_rewrites(
        self,
        raw: pa.Table,
        parts: DecodedMessageParts,
        before: Mapping[int, Sequence[ChainPlace]],
        removed: Mapping[int, bytes | None],
    ) -> dict[int, str]:
        """Returns the messages that must not be rewritten, by index in `raw`, each with the reason.

        After rewriting, such a message would decode differently for another session, or a chain of others would have
        a gap.
        """
        numbers = np.array([number for number, value in removed.items() if value is not None], np.int64)
        if not len(numbers):
            return {}
        new = raw.take(pa.array(numbers))
        place = new.schema.get_field_index("value")
        values = pa.array([removed[number] for number in numbers.tolist()], new.schema.field("value").type)
        found = self.decoder.decode(new.set_column(place, new.schema.field("value"), values))
        found = found._replace(message=numbers[found.message])
        after = list_chain_places_by_message(found)
        expected, left = (self._list_parts_of_other_sessions(one, numbers) for one in (parts, found))
        changed = {number: "other sessions' rows depend on its part" for number in numbers.tolist()
                   if expected.get(number) != left.get(number)}  # fmt: skip
        moved = "without its part, a chain of other sessions would have a gap"
        return {number: moved for number in numbers.tolist() if before.get(number) != after.get(number)} | changed

    def _list_parts_of_other_sessions(
        self, parts: DecodedMessageParts, message_indices: Int64s
    ) -> dict[int, list[Row]]:
        """Returns the parts of other sessions in these messages, by the message's index."""
        chosen = np.isin(parts.message, message_indices) & pc.is_valid(parts.chunk["session_id"]).to_numpy()
        chosen &= ~self._mask_parts_of_session(parts.chunk)
        rows = parts.chunk.filter(pa.array(chosen)).drop_columns("part").to_pylist()
        found = defaultdict[int, list[Row]](list)
        for number, row in zip(parts.message[chosen].tolist(), rows, strict=True):
            found[number].append(row)
        return found

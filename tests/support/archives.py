"""Test data for archives: messages of a few sessions in two topic-partitions."""

from __future__ import annotations

import json
import zlib

from sessionlake.bronze.archive.lines import (
    ArchivedMessage,
    encode_footer_line,
    encode_header_line,
    encode_message_line,
)

PLACES = (("capture.a", 0), ("capture.a", 1))


def capture(messages: int = 40) -> list[tuple[tuple[str, int], ArchivedMessage]]:
    """Returns messages of one session per topic-partition, in offset order. The offsets have a gap."""
    made = []
    for number, place in enumerate(PLACES):
        for seq in range(messages):
            kind = "update" if seq else "snapshot"
            value = {"type": kind, "seq": seq, "ts": 1000 + seq, "rows": [{"id": f"r{seq % 3}", "price": float(seq)}]}
            offset = 100 * number + seq + (7 if seq > 5 else 0)
            own = ArchivedMessage(
                offset, 1_700_000_000_000 + seq, f"s{number}".encode(), json.dumps(value).encode(), 0, ()
            )
            made.append((place, own))
    return made


def content(place: tuple[str, int], messages: list[ArchivedMessage]) -> bytes:
    """Returns the content of an archive member."""
    body = b"".join(encode_message_line(message) for message in messages)
    return encode_header_line(*place) + body + encode_footer_line(len(messages), zlib.crc32(body))

"""Lists the places of messages in chains, which placeholders of erased messages keep."""

from __future__ import annotations

from collections import defaultdict
from itertools import groupby
from operator import itemgetter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.feeds.chunks import DecodedMessageParts
from sessionlake.protocol.erased import ChainPlace
from sessionlake.protocol.message import MessageType, SeqLink

_CHAIN_COLUMNS = ("chain", "seq", "after", "link", "type")


def list_chain_places_by_message(parts: DecodedMessageParts) -> dict[int, list[ChainPlace]]:
    """Returns the places of messages in chains, by the message's index."""
    chosen = np.flatnonzero(pc.is_valid(parts.chunk["chain"]).to_numpy())
    rows = parts.chunk.select(_CHAIN_COLUMNS).take(pa.array(chosen)).to_pylist()
    places = zip(parts.message[chosen].tolist(), rows, strict=True)
    found = defaultdict[int, list[ChainPlace]](list)
    by_chain = sorted(places, key=lambda place: (place[0], place[1]["chain"]))
    for (number, chain), group in groupby(by_chain, lambda place: (place[0], place[1]["chain"])):
        first, *others = map(itemgetter(1), group)
        found[number].append(
            ChainPlace(
                chain=chain,
                seq=first["seq"],
                after=first["after"],
                is_link=first["link"] == SeqLink.LINK,
                restart=any(row["link"] == SeqLink.RESTART for row in (first, *others)),
                is_heartbeat=all(row["type"] == MessageType.HEARTBEAT for row in (first, *others)),
            )
        )
    return found

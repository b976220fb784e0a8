"""Refuses to read messages by feeds that have changed since a layer read earlier messages of the same topics."""

from __future__ import annotations

from collections.abc import Iterable
from operator import eq, ge, itemgetter

from sessionlake.delta.schemas.names import LEDGER, SILVER
from sessionlake.delta.storage.reading import TableReader
from sessionlake.errors import LakeError
from sessionlake.settings.feed_history import FeedMapping, find_topic_with_changed_feed
from sessionlake.settings.model import Settings


def refuse_changed_feeds(
    reader: TableReader,
    settings: Settings,
    last_batch: int,
    topics: Iterable[str],
    layer: str = SILVER,
    doing: str = "",
) -> None:
    """Checks that feeds read each of these topics in the same way as before.

    Args:
        reader: Reads the ledger.
        settings: The settings of the lake.
        last_batch: The number of the layer's last batch; -1 before the first.
        topics: The topics that the layer has read.
        layer: Silver, or the layer of a processor.
        doing: What is to be done with messages, for the error, such as "rebuild silver"; empty for the layer's name.

    Raises:
        LakeError: A topic would be read in another way than before.
    """
    if last_batch < 0 or not settings.capture.feeds:  # without feeds, messages of other forms go to quarantine
        return
    former = _read_feed_mappings_of_batch(reader, layer, last_batch)
    changed = None if former is None else find_topic_with_changed_feed(former, settings.capture, topics)
    if changed is not None:
        what = SILVER if layer == SILVER else f"processor:{layer.removeprefix('processor-')}"
        raise LakeError(
            f"{doing or layer}: the feeds in the configuration read the messages of topic "
            f"{changed.topic} in another way than before: {changed.text}",
            why="The tables would have messages that were read in two ways",
            fix=f"Run `sessionlake rebuild {what}`, which reads all messages with the present feeds, or "
            "set capture.feeds back to what it was",
        )


def _read_feed_mappings_of_batch(reader: TableReader, layer: str, batch: int) -> list[FeedMapping] | None:
    """Returns how feeds read messages in a layer's batch, from the ledger; None if the ledger does not have it."""
    of_batch = ("layer", eq, layer), ("batch_id", ge, batch)
    rows = list(reader.read_rows(LEDGER, *of_batch, columns=["batch_id", "committed_at", "feeds"]))
    latest = max(rows, key=itemgetter("committed_at"), default=None)
    if latest is None or latest["feeds"] is None:
        return None
    return [FeedMapping(**feed) for feed in latest["feeds"]]

"""Checks that gold's tables name feeds and columns that the section `capture` of the configuration declares."""

from __future__ import annotations

from sessionlake.feeds.topics import describe_unknown_feed
from sessionlake.protocol.columns import is_decimal_type
from sessionlake.settings.capture import CaptureSettings
from sessionlake.settings.gold import GoldSettings


def require_declared_sources(gold: GoldSettings, capture: CaptureSettings) -> None:
    """Checks that every `feed` of gold's tables exists, and that `value` of products names a decimal column.

    Raises:
        ValueError: A name is unknown; the text names the table and the allowed names.
    """
    feeds = [feed.name for feed in capture.feeds]
    for key, declared in (("products", gold.products), ("averages", gold.averages)):
        for one in declared:
            if one.feed is not None and one.feed not in feeds:
                raise ValueError(f"gold.{key}: {one.name}: feed: {describe_unknown_feed(one.feed, feeds)}")
    decimals = [column.name for column in capture.declared_columns if is_decimal_type(column.sql)]
    for product in gold.products:
        if product.source is None and product.value is not None and product.value not in decimals:
            raise ValueError(
                f"gold.products: {product.name}: value: {product.value!r} is not a decimal column of a feed, which a "
                f"product without `source` needs; decimal columns are {', '.join(decimals) or 'none'}"
            )

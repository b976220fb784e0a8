"""Bronze from other sources than Kafka in a catalog: each message once, and numbered the same."""

from __future__ import annotations

from spark.test_bronze_sources import (  # noqa: F401 - pytest runs what is imported again here
    archived,
    folder,
    test_what_is_archived_comes_into_bronze_as_it_was_whatever_dies_between,
    test_what_kinesis_gives_is_numbered_by_shard_in_the_order_of_sequence_numbers,
)

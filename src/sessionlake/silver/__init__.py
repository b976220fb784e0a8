"""Silver: judges messages and builds the tables of their sessions.

The parts of this package, from the bottom up. Each imports only those listed before it. Pure parts do not import Spark.

- `fold`: pure; decodes and judges the messages of one shard and turns them into changes
- `tables`: pure; computes the tables of sessions from changes
- `merge`: merges batches of changes into the tables of sessions
- `states`: reads the states stored in a checkpoint
- `unread`: finds the silences in bronze that a layer has not read yet
- `stream_times`: stores the stream time of each topic-partition between batches
- `in_memory`: judges messages without Spark, and holds the tables in memory
- `decisions`: operators' decisions about messages that stopped silver
- `quarantine`: adds the raw bytes to quarantined messages
- `mappings`: refuses feeds that read messages in another way than before
- `packing`: packs the messages in bronze by shard
- `job`: runs the stream
"""

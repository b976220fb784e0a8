"""Silver: messages judged, and the tables of their sessions.

The parts of this package, from the bottom up. Each imports only those listed before it; a pure one imports no Spark.

- `fold`: pure; messages of one shard decoded, judged and turned into changes
- `tables`: pure; the tables of sessions computed from changes
- `merge`: the tables of sessions, merged from batches of changes
- `states`: the stored states of a checkpoint
- `unread`: what silver has not read of bronze
- `stream_times`: stream time of each topic-partition, kept between batches
- `decisions`: what operators decided about messages that stopped silver
- `quarantine`: quarantined messages with their raw bytes
- `job`: the stream
"""

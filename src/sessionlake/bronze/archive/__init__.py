"""Archives: captures on disk, as files of members, each a run of one topic-partition's messages."""

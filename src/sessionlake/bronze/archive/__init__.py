"""Archives: captures on disk. A file has members, and each member has consecutive messages of one topic-partition."""

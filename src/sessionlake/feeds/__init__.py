"""Feeds: how messages of any form become the events of a session. Pure: no Spark, no tables, no clock."""

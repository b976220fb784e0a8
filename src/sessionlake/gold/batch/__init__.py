"""One micro-batch of gold committed, table by table."""

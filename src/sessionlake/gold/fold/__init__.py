"""The gold fold: turns a shard's state and a batch's changes into rows of gold's tables and the next state. Pure."""

"""Joins changes with reference tables as of event time, and finds which rows a changed table affects. No I/O."""

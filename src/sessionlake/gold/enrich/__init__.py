"""Joins changes with reference tables as of event time, and finds what a changed reference table touches. Pure."""

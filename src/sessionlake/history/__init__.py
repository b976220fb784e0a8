"""Reads a lake to answer questions: past tables, traces of messages, how gold's values came about, status, report."""

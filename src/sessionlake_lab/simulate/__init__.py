"""Sensors that never were: plausible captures, with faults on request, from a seed into Kafka.

It has no names of its own: the command line reads `scenario` for its options, and must not load all else for `--help`.
"""

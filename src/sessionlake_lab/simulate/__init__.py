"""The simulator: plausible captures of sensors, with faults on request, from a seed into Kafka.

This package imports nothing here, so that `--help` of the command line loads only `scenario`.
"""

"""Sensors that never were: plausible captures, with faults on request, from a seed into Kafka."""

from sessionlake.local.simulate.generate import generate
from sessionlake.local.simulate.scenario import Faults, Message, Mix, Scenario

__all__ = ["Faults", "Message", "Mix", "Scenario", "generate"]

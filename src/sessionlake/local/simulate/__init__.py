"""Sensors that never were: plausible captures, with faults on request, from a seed into Kafka.

`sink` and `readback` need the Kafka client and are imported where they are used.
"""

from sessionlake.local.simulate.generate import generate
from sessionlake.local.simulate.run import SimulationReport, build_scenario, run_simulation, simulate
from sessionlake.local.simulate.scenario import PLAIN, Faults, Message, Mix, Scenario

__all__ = [
    "PLAIN",
    "Faults",
    "Message",
    "Mix",
    "Scenario",
    "SimulationReport",
    "build_scenario",
    "generate",
    "run_simulation",
    "simulate",
]

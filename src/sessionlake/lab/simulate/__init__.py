"""Sensors that never were: plausible captures, with faults on request, from a seed into Kafka.

`sink` and `readback` need the Kafka client and are imported where they are used.
"""

from sessionlake.lab.simulate.generate import generate
from sessionlake.lab.simulate.run import SimulationReport, build_scenario, run_simulation, simulate
from sessionlake.lab.simulate.scenario import PLAIN, Faults, KafkaRecord, Mix, Scenario

__all__ = [
    "PLAIN",
    "Faults",
    "KafkaRecord",
    "Mix",
    "Scenario",
    "SimulationReport",
    "build_scenario",
    "generate",
    "run_simulation",
    "simulate",
]

"""Starts the next driver to be killed in advance, while the current one still runs."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import TYPE_CHECKING

from sessionlake.delta.storage import faults
from sessionlake.settings.model import load_settings
from support.attached import attached, open_to_another
from support.crash_worker import run_layer
from support.crashes import DRIVERS, SECONDS, Death

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession


class Standby:
    """Drivers on one JVM, one after the other. A driver that does not reach its fault point is used again."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._held = ExitStack()
        self._begin()

    def _begin(self) -> None:
        environment = self._held.enter_context(open_to_another(self._spark))
        self._requests, theirs = DRIVERS.Pipe()
        self._process: ForkServerProcess = DRIVERS.Process(target=_serve, args=(theirs, dict(environment)), daemon=True)
        self._process.start()
        theirs.close()

    def run(self, file: Path, death: Death) -> bool:
        """Runs a layer over all input. Returns True if its driver died at the fault point."""
        self._requests.send((file, death.layer, death.place))
        assert self._requests.poll(SECONDS), death
        try:
            self._requests.recv()
        except EOFError:
            self._process.join(SECONDS)
            assert self._process.exitcode == -signal.SIGKILL, death
            self._held.close()
            self._begin()
            return True
        return False

    def end(self) -> None:
        """Ends the waiting driver."""
        self._process.kill()
        self._process.join(SECONDS)
        self._held.close()


def _serve(requests: Connection, environment: Mapping[str, str]) -> None:
    """Runs a driver that executes requests until it dies."""
    os.environ.update(environment)
    spark = attached()
    assert spark is not None
    while True:
        file, layer, place = requests.recv()
        faults._passed.clear()
        os.environ[faults.VARIABLE] = place
        run_layer(spark, load_settings(file), layer)
        requests.send(layer)

"""Runs a driver's Python process on a JVM that another process has started, as notebooks of a cluster do.

A test can kill this process without killing the JVM, whose batch is then abandoned. It starts faster than a process
with its own JVM. `python -m support.attached WORDS` runs the command line in this way and does not stop Spark.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from support.waiting import eventually

_PORT, _SECRET = "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"  # pyspark's own names
SECONDS = 60
COMMAND = (sys.executable, "-m", "support.attached")


@contextmanager
def open_to_another(spark: Any) -> Iterator[Mapping[str, str]]:
    """Yields the environment with which another process can attach. At the end, waits until its queries have ended."""
    server = spark._jvm.org.apache.spark.api.python.Py4JServer(spark.sparkContext._jsc.sc().conf())
    server.start()
    try:
        yield {_PORT: str(server.getListeningPort()), _SECRET: server.secret()}
        eventually(lambda: not spark.streams.active, SECONDS, failure=lambda: "the query of a killed driver still runs")
        stores = getattr(spark._jvm.org.apache.spark.sql.execution.streaming.state, "StateStore$")
        getattr(stores, "MODULE$").unloadAll()  # a separate JVM would lose them when it ends
    finally:
        server.shutdown()


def attached() -> Any | None:
    """Returns the session of the JVM in the environment variables, or None if they name none."""
    if _PORT not in os.environ:
        return None
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    gateway = launch_gateway()
    session = gateway.jvm.org.apache.spark.sql.classic.SparkSession.getDefaultSession().get()
    context = session.sparkContext()
    java_context = gateway.jvm.org.apache.spark.api.java.JavaSparkContext(context)
    return SparkSession(SparkContext(gateway=gateway, jsc=java_context, conf=SparkConf(_jconf=context.conf())), session)


def main() -> None:
    """Runs the command line on the JVM in the environment variables."""
    assert attached() is not None, f"{_PORT} names no JVM"
    from sessionlake.cli import app as cli
    from sessionlake.spark import session as spark

    spark.stop_spark = lambda: None
    cli.main()


if __name__ == "__main__":
    main()

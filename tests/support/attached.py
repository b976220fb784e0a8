"""A driver's Python by itself, over a JVM that another process has started: as each notebook of a cluster has one.

Killed, it leaves a JVM that finds its batch given up; what starts is not a JVM, which costs most of a test's process.
`python -m support.attached WORDS` is the command line so, and leaves Spark to its owner.
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
    """The environment in which another process may attach itself; at the end no query of its own runs any more."""
    server = spark._jvm.org.apache.spark.api.python.Py4JServer(spark.sparkContext._jsc.sc().conf())
    server.start()
    try:
        yield {_PORT: str(server.getListeningPort()), _SECRET: server.secret()}
        eventually(lambda: not spark.streams.active, SECONDS, told=lambda: "the query of a driver that is gone goes on")
        stores = getattr(spark._jvm.org.apache.spark.sql.execution.streaming.state, "StateStore$")
        getattr(stores, "MODULE$").unloadAll()  # they would be gone with a JVM of the driver's own
    finally:
        server.shutdown()


def attached() -> Any | None:
    """The session of the JVM that the environment names, with its settings; none where it names none."""
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
    """The command line, over the JVM that the environment names."""
    assert attached() is not None, f"{_PORT} names no JVM"
    from sessionlake.cli import app as cli
    from sessionlake.spark import session as spark

    spark.stop_spark = lambda: None
    cli.main()


if __name__ == "__main__":
    main()

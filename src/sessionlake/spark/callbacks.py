"""Ends the Python threads that serve calls from Spark's JVM.

By itself, py4j ends such a thread only when its connection closes.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from sessionlake.spark.session import is_on_databricks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def create_jvm_connection_closer(spark: SparkSession) -> Callable[[], None]:
    """Returns a function that ends the calling thread by closing its connection to the JVM.

    Call the function once the Java thread on the other side has made its last call. Each Java thread has its own
    connection and so its own Python thread, and neither ends with the Java thread. A query that restarts often would
    otherwise leave a thread each time, with the memory that its allocators keep. On Databricks, which may reuse its
    threads, the function does nothing.
    """
    from py4j.clientserver import JavaClient

    client = spark.sparkContext._gateway._gateway_client  # noqa: SLF001 (pyspark has no public way to its JVM)
    asked = isinstance(client, JavaClient) and not is_on_databricks()
    connection = client.get_thread_connection() if asked else None

    def close_connection() -> None:
        if connection is not None and connection.socket is not None:
            with suppress(OSError):  # the connection is closed already
                connection.socket.shutdown(socket.SHUT_RDWR)

    return close_connection

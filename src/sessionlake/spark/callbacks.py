"""Threads in which Spark's JVM calls this process, which py4j ends only when a connection does."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from sessionlake.spark.session import on_platform

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def ending_this_thread(spark: SparkSession) -> Callable[[], None]:
    """How the thread that asks is ended, once the thread of Java's that has called it will call no more.

    Each of Java's threads has a connection, and so a thread here, of its own, and keeps it when it ends: a query that
    is started again and again would leave one each time, with what its allocators hold. On a platform, which may use
    its threads again, nothing is done.
    """
    from py4j.clientserver import JavaClient

    client = spark.sparkContext._gateway._gateway_client  # noqa: SLF001 (pyspark has no public way to its JVM)
    asked = isinstance(client, JavaClient) and not on_platform()
    connection = client.get_thread_connection() if asked else None

    def end() -> None:
        if connection is not None and connection.socket is not None:
            with suppress(OSError):  # it has ended by itself
                connection.socket.shutdown(socket.SHUT_RDWR)

    return end

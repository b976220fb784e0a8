"""Threads in which Spark's JVM calls this process, which py4j ends only when a connection does."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from sessionlake.runtime.spark import on_platform

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def ending_this_thread(spark: SparkSession) -> Callable[[], None]:
    """How the thread that asks is ended, once the thread of Java's that has called it will call no more.

    Each of Java's threads has a connection, and so a thread here, of its own, and keeps it when it ends: a query that
    is started again and again would leave one each time, with what its allocators hold. On a platform, which may use
    its threads again, nothing is done.
    """
    gateway = spark.sparkContext._gateway  # noqa: SLF001 (pyspark has no public way to its JVM)
    asked = None if on_platform() else getattr(gateway._gateway_client, "get_thread_connection", None)  # noqa: SLF001
    connection = asked() if asked is not None else None

    def end() -> None:
        theirs = getattr(connection, "socket", None)
        if theirs is not None:
            with suppress(OSError):  # it has ended by itself
                theirs.shutdown(socket.SHUT_RDWR)

    return end

"""Access to the JVM through py4j."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_KEPT = (
    # used a dozen times to convert one exception
    "py4j.reflection.TypeUtil",
    "org.apache.spark.sql",
    "java.lang",
    "java.util",
    "scala",
)


def jvm(session: SparkSession) -> Any:
    return session._jvm


def keep_packages(view: Any, packages: tuple[str, ...]) -> None:
    """Cache packages in py4j, which otherwise asks the JVM for each part of a name, a search in every jar."""
    for name in (*_KEPT, *packages):
        node = view
        for part in name.split("."):
            found = getattr(node, part)
            setattr(node, part, found)
            node = found

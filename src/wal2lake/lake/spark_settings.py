"""The settings of our Spark driver and of the sessions of the work: ours, under what the user gave."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from . import archive

EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"


def session_settings(cores: int) -> dict[str, str]:
    """What each of our sessions is set to; the user's own configuration stands above it."""
    return {
        "spark.sql.caseSensitive": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.ansi.enabled": "true",
        "spark.sql.shuffle.partitions": str(cores),
        "spark.sql.adaptive.enabled": "false",
        # Listing the segments of a long backlog would otherwise be a Spark job of its own.
        "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
        "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
        "spark.sql.parquet.int96RebaseModeInRead": "CORRECTED",
        "spark.sql.legacy.charVarcharAsString": "true",
        # Filters that look into the other side of a join cost planning and save nothing here.
        "spark.sql.optimizer.runtime.bloomFilter.enabled": "false",
        "spark.sql.optimizer.dynamicPartitionPruning.enabled": "false",
        # Spark would write every constraint once for each combination of names that its columns have: of a hash of
        # twenty columns, a million.
        "spark.sql.constraintPropagation.enabled": "false",
        "spark.sql.maxMetadataStringLength": "20",
        # Iceberg's vectorised reader never gives back some direct memory of each MERGE into a table with deletions.
        "spark.sql.iceberg.vectorization.enabled": "false",
        # Names and keys in our statements mean themselves.
        "spark.sql.variable.substitute": "false",
        "spark.sql.parser.escapedStringLiterals": "false",
        # A list of keys is data: code that is compiled for one batch serves the next.
        "spark.sql.optimizer.inSetConversionThreshold": "0",
        "spark.sql.optimizer.inSetSwitchThreshold": "0",
    }


HEAP = "1g"
"""of the JVM, where the user names no other size"""


TASK_ATTEMPTS = 3


# Compiling is half of what the JVM does in its first minutes. With less inlining it is half of that, and what is
# compiled does its work in the same time.
_COMPILING = "-XX:MaxInlineLevel=8 -XX:InlineSmallCode=1000 -XX:FreqInlineSize=150"


def driver_settings(master: str, given: Mapping[str, str], paths: list[Path], *, debug: bool = False) -> dict[str, str]:
    """The whole configuration of our own driver: ours, under what the user gave, with jars and extensions merged."""
    settings = {
        "spark.app.name": "wal2lake",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.extensions": EXTENSIONS,
        "spark.cleaner.periodicGC.interval": "15min",
        "spark.sql.ui.retainedExecutions": "10",
        "spark.ui.retainedJobs": "50",
        "spark.ui.retainedStages": "50",
        "spark.ui.retainedTasks": "1000",
        # All of it from the start: a heap that grows step by step is collected more often, and for an hour nobody can
        # tell whether it leaks.
        "spark.driver.memory": HEAP,
        **session_settings(1),
    }
    settings.pop("spark.sql.shuffle.partitions")
    settings |= given
    settings["spark.master"] = _persistent(master)
    local = master.startswith("local")
    if local:
        settings.setdefault("spark.driver.bindAddress", "127.0.0.1")
        settings.setdefault("spark.driver.host", "127.0.0.1")
    _merge(settings, "spark.driver.extraClassPath" if local else "spark.jars", paths, os.pathsep if local else ",")
    if EXTENSIONS not in settings["spark.sql.extensions"]:
        settings["spark.sql.extensions"] += f",{EXTENSIONS}"
    level = "warn" if debug else "off"
    log4j = Path(__file__).with_name("log4j2.properties").as_uri()
    options = (
        f"{archive.java_option(given) if local else ''} -Dlog4j2.configurationFile={log4j} -Dwal2lake.spark.log={level}"
        f"{'' if 'spark.driver.memory' in given else f' -Xms{HEAP}'}{_collector(given)} {_COMPILING}"
    )
    # The last word on each is the user's.
    settings["spark.driver.extraJavaOptions"] = f"{options} {settings.get('spark.driver.extraJavaOptions', '')}".strip()
    return settings


def _persistent(master: str) -> str:
    """A local master that tries a task again, as a cluster does: above all, a range of a copy."""
    return re.sub(r"^local\[(\*|\d+)\]$", rf"local[\1,{TASK_ATTEMPTS}]", master)


def _collector(given: Mapping[str, str]) -> str:
    """The garbage collector that costs least where pauses of tens of milliseconds are nothing."""
    chosen = re.search(r"-XX:\+Use\w+GC\b", given.get("spark.driver.extraJavaOptions", ""))
    return "" if chosen else " -XX:+UseParallelGC"


def _merge(settings: dict[str, str], name: str, paths: list[Path], separator: str) -> None:
    settings[name] = separator.join([*filter(None, [settings.get(name)]), *map(str, paths)])

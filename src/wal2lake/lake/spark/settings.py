"""Settings of our Spark driver and of sessions; the user's configuration overrides them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from ..format import Runtime
from . import archive
from .jars import needed


def session_settings(cores: int, runtime: Runtime) -> dict[str, str]:
    """The settings of our sessions; the user's configuration overrides them."""
    return {
        "spark.sql.caseSensitive": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.ansi.enabled": "true",
        "spark.sql.shuffle.partitions": str(cores),
        "spark.sql.adaptive.enabled": "false",
        # Listing the segments of a long backlog would otherwise be a Spark job.
        "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
        "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
        "spark.sql.parquet.int96RebaseModeInRead": "CORRECTED",
        "spark.sql.legacy.charVarcharAsString": "true",
        # Runtime filters cost planning time and save nothing here.
        "spark.sql.optimizer.runtime.bloomFilter.enabled": "false",
        "spark.sql.optimizer.dynamicPartitionPruning.enabled": "false",
        # Constraint propagation writes every constraint once per combination of aliases of its columns: a million for a
        # hash of twenty columns.
        "spark.sql.constraintPropagation.enabled": "false",
        "spark.sql.maxMetadataStringLength": "20",
        # No variable substitution in names and keys of our statements.
        "spark.sql.variable.substitute": "false",
        "spark.sql.parser.escapedStringLiterals": "false",
        # A list of keys is data, so that code compiled for one batch is reused for the next.
        "spark.sql.optimizer.inSetConversionThreshold": "0",
        "spark.sql.optimizer.inSetSwitchThreshold": "0",
        **runtime.settings,
    }


HEAP = "1g"
"""heap of the JVM, unless the user sets another size"""


TASK_ATTEMPTS = 3


# Compilation is half of what the JVM does in its first minutes. With less inlining it takes half the time, and the
# compiled code is as fast.
_COMPILING = "-XX:MaxInlineLevel=8 -XX:InlineSmallCode=1000 -XX:FreqInlineSize=150"

# Where JVM options may come from: Spark's settings, and the environment.
_JAVA_OPTIONS = ("spark.driver.defaultJavaOptions", "spark.driver.extraJavaOptions")
_JAVA_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")


def driver_settings(
    master: str, given: Mapping[str, str], runtime: Runtime, paths: list[Path], *, debug: bool = False
) -> dict[str, str]:
    """The whole configuration of our own driver: ours, overridden by the user's, with jars and extensions merged."""
    settings = {
        "spark.app.name": "wal2lake",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.cleaner.periodicGC.interval": "15min",
        "spark.sql.ui.retainedExecutions": "10",
        "spark.ui.retainedJobs": "50",
        "spark.ui.retainedStages": "50",
        "spark.ui.retainedTasks": "1000",
        # The full heap from the start: a growing heap is collected more often, and for an hour it looks like a leak.
        "spark.driver.memory": HEAP,
        **session_settings(1, runtime),
    }
    settings.pop("spark.sql.shuffle.partitions")
    settings |= given
    settings["spark.master"] = _persistent(master)
    local = master.startswith("local")
    if local:
        settings.setdefault("spark.driver.bindAddress", "127.0.0.1")
        settings.setdefault("spark.driver.host", "127.0.0.1")
    _merge(settings, "spark.driver.extraClassPath" if local else "spark.jars", paths, os.pathsep if local else ",")
    extensions = [name.strip() for name in settings.get("spark.sql.extensions", "").split(",")]
    extensions += [one for one in runtime.extensions if one not in extensions]
    settings["spark.sql.extensions"] = ",".join(filter(None, extensions))
    level = "warn" if debug else "off"
    archived = archive.java_option(given, needed(runtime).values()) if local else ""
    log4j = Path(__file__).with_name("log4j2.properties").as_uri()
    options = (
        f"{archived} -Dlog4j2.configurationFile={log4j} -Dwal2lake.spark.log={level}"
        f"{'' if 'spark.driver.memory' in given else f' -Xms{HEAP}'}{_collector(given)} {_COMPILING}"
    )
    # The user's options come last and win.
    settings["spark.driver.extraJavaOptions"] = f"{options} {settings.get('spark.driver.extraJavaOptions', '')}".strip()
    return settings


def _persistent(master: str) -> str:
    """A local master that retries a task, as a cluster does: above all, a range of a copy."""
    return re.sub(r"^local\[(\*|\d+)\]$", rf"local[\1,{TASK_ATTEMPTS}]", master)


def _collector(given: Mapping[str, str]) -> str:
    """The garbage collector with the least CPU time; pauses of tens of milliseconds do not matter.

    A JVM with two collectors in its options does not start, so none is added if the user chose one anywhere.
    """
    places = [given.get(name, "") for name in _JAVA_OPTIONS] + [os.environ.get(name, "") for name in _JAVA_VARIABLES]
    return "" if re.search(r"-XX:\+Use\w+GC\b", " ".join(places)) else " -XX:+UseParallelGC"


def _merge(settings: dict[str, str], name: str, paths: list[Path], separator: str) -> None:
    settings[name] = separator.join([*filter(None, [settings.get(name)]), *map(str, paths)])

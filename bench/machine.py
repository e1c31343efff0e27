"""Where the figures come from: the machine's size, the versions of what ran, and how busy single processes were."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

from wal2lake.demo.server import find_binaries
from wal2lake.java import java_path
from wal2lake.lake.iceberg.runtime import ICEBERG
from wal2lake.lake.spark.jars import POSTGRESQL

_PROC = Path("/proc")


def describe() -> dict[str, Any]:
    return {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "cpu": _cpu_model(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "load_before": round(os.getloadavg()[0], 2),
        "versions": {
            "wal2lake": importlib.metadata.version("wal2lake"),
            "commit": _first_line(["git", "describe", "--always", "--dirty"]),
            "Python": platform.python_version(),
            "PostgreSQL": _first_line([str(find_binaries() / "postgres"), "--version"]).rpartition(" ")[2],
            "Spark": importlib.metadata.version("pyspark"),
            "Iceberg": ICEBERG.version,
            "PostgreSQL JDBC": POSTGRESQL.version,
            "Java": _java(),
        },
    }


def cpu_seconds(pid: int | None, *, reaped: bool = False) -> float | None:
    """Processor time that a process has used, with `reaped` also that of its children that have ended.

    None where the system doesn't tell, or the process is gone.
    """
    try:
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    # utime, stime, cutime and cstime are fields 14 to 17; what is left after the name begins with field 3.
    ticks = sum(int(field) for field in fields[11 : 15 if reaped else 13])
    return ticks / os.sysconf("SC_CLK_TCK")


def waited_seconds(pid: int) -> float | None:
    """Time that a process was ready to run and had to wait for a processor; None where the system doesn't tell."""
    try:
        return int((_PROC / str(pid) / "schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return None


def share(before: float | None, after: float | None, seconds: float) -> float | None:
    """Cores in use between two readings of `cpu_seconds`."""
    return None if before is None or after is None else (after - before) / seconds


def peak_memory(pid: int | None) -> int | None:
    """Most bytes that a process has ever had in memory; None where the system doesn't tell."""
    try:
        lines = (_PROC / str(pid) / "status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)


def disk_bytes(directory: Path) -> int:
    """What the files below a directory hold; one that goes away meanwhile counts nothing."""
    total = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            with suppress(OSError):
                total += (Path(parent) / name).stat().st_size
    return total


def _cpu_model() -> str:
    try:
        lines = (_PROC / "cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def _java() -> str:
    text = _first_line([java_path() or "java", "-version"])
    return text.split('"')[1] if '"' in text else text


def _first_line(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
    except OSError:
        return "unknown"
    lines = (done.stdout + done.stderr).splitlines()
    return lines[0].strip() if done.returncode == 0 and lines else "unknown"

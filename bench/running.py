"""`wal2lake run` as a process of its own, in a project directory of its own, the way a user starts it.

It never outlives the benchmark; what it said is shown if anything goes wrong while it runs.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from wal2lake.config import Config, load_config
from wal2lake.mirror import Mirror

from .model import require_equal
from .processes import Family

START_LIMIT, STOP_LIMIT = 600.0, 120.0
LOOK_SECONDS = 0.2


@dataclass(frozen=True)
class Project:
    """A directory with a configuration file; its lake is in it."""

    directory: Path
    config: Config

    @property
    def lake(self) -> Path:
        return self.config.lake_path


def new_project(
    directory: Path, dsn: str, tables: Sequence[str] = ("public.*",), flush_interval: float | None = None
) -> Project:
    """Everything that is not named is as it is by default."""
    directory.mkdir(exist_ok=True)
    file = directory / "wal2lake.toml"
    names = ", ".join(f'"{name}"' for name in tables)
    text = f'[source]\ndsn = "{dsn}"\n[lake]\npath = "lake"\n[[groups]]\nname = "default"\ntables = [{names}]\n'
    if flush_interval is not None:
        text += f"flush_interval = {flush_interval}\n"
    file.write_text(text, "utf-8")
    config = load_config(file)
    config.lake_path.mkdir(exist_ok=True)
    return Project(directory, config)


class Run:
    """One `wal2lake run` while it is on."""

    def __init__(self, project: Project, process: subprocess.Popen[bytes]) -> None:
        self.project, self._process = project, process
        self.began = time.monotonic()

    @property
    def pid(self) -> int:
        return self._process.pid

    def until(self, limit: float, condition: Callable[[], object], what: str) -> None:
        """Wait for something that can only come about while the process is there."""
        deadline = time.monotonic() + limit
        while not condition():
            if self._process.poll() is not None:
                raise RuntimeError(f"wal2lake run ended with {self._process.returncode} before {what}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"not within {limit:g} s: {what}")
            time.sleep(LOOK_SECONDS)

    def until_streaming(self, tables: int, limit: float = START_LIMIT) -> float:
        """Wait until so many tables stream; the seconds since the process was started."""
        mirror = Mirror(self.project.config)

        def streaming() -> bool:
            status = mirror.status()
            if broken := [f"{table.name}: {table.error}" for table in status.tables if table.state == "ERRORED"]:
                raise RuntimeError("; ".join(broken))
            # States of an earlier run stay in the store until this one has looked at the tables itself.
            (group,) = status.groups
            ours = group.state == "RUNNING" and f"process {self.pid} " in f"{group.holder} "
            return ours and [table.state for table in status.tables] == ["STREAMING"] * tables

        self.until(limit, streaming, f"{tables} tables stream")
        return time.monotonic() - self.began

    def family(self) -> Family:
        found = Family.of(self.pid)
        if found is None:
            raise RuntimeError("wal2lake run has no JVM or no capture process")
        return found

    def end(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        require_equal("exit status of wal2lake run", self._process.wait(STOP_LIMIT), 0)


@contextmanager
def running(project: Project) -> Iterator[Run]:
    setpriv = shutil.which("setpriv")
    log = project.directory / "run.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*([setpriv, "--pdeathsig", "TERM"] if setpriv else []), sys.executable, "-m", "wal2lake", "run"],
            cwd=project.directory, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
    try:
        yield Run(project, process)
    except BaseException:
        sys.stderr.write(_tail(log))
        raise
    finally:
        if process.poll() is None:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOP_LIMIT)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _tail(log: Path) -> str:
    return "".join(f"run: {line}\n" for line in log.read_text("utf-8", "replace").splitlines()[-20:])

"""The real command line, run as a process of its own, in a directory with a configuration file."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from capture_modes import MODE
from waiting import wait_until
from wal2lake.config import load_config
from wal2lake.mirror import Mirror

TIMEOUT = 150.0
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""for what does little and ends soon: the JVM's second compiler would only be in the way"""


@dataclass(frozen=True)
class Finished:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def all(self) -> str:
        return self.out + self.err


@dataclass
class Running:
    """A command that has been started. Its output goes to files, so that no pipe can fill up and stop it."""

    process: subprocess.Popen[bytes]
    out_file: Path
    err_file: Path

    @property
    def out(self) -> str:
        return self.out_file.read_text("utf-8", "replace")

    @property
    def err(self) -> str:
        return self.err_file.read_text("utf-8", "replace")

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, timeout: float = TIMEOUT) -> Finished:
        wait_until(lambda: not self.running, timeout, lambda: f"the command ends; it said:\n{self.out}{self.err}")
        return Finished(self.process.returncode, self.out, self.err)

    def kill(self) -> None:
        """End it and the processes it started, without asking."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def start_wal2lake(args: list[str], env: Mapping[str, str] | None, cwd: Path, number: int = 0) -> Running:
    """Start `wal2lake` in `cwd`, in a process group of its own; nothing of our own environment configures it."""
    clean = {
        name: value for name, value in os.environ.items()
        if not name.startswith(("WAL2LAKE_", "PG")) or name == "WAL2LAKE_CACHE"
    }  # fmt: skip
    clean.setdefault("JAVA_TOOL_OPTIONS", QUICK_JVM)
    out_file, err_file = cwd / f"stdout-{number}.txt", cwd / f"stderr-{number}.txt"
    with out_file.open("wb") as out, err_file.open("wb") as err:
        process = subprocess.Popen(
            [*_ends_with_us(), sys.executable, "-m", "wal2lake", *args],
            cwd=cwd, env={**clean, **(env or {})}, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
            start_new_session=True,
        )  # fmt: skip
    return Running(process, out_file, err_file)


def _ends_with_us() -> list[str]:
    """A test run that is killed must not leave commands running, where the kernel can see to that."""
    return [setpriv, "--pdeathsig", "TERM"] if (setpriv := shutil.which("setpriv")) else []


def run_wal2lake(args: list[str], env: Mapping[str, str] | None, cwd: Path, timeout: float = TIMEOUT) -> Finished:
    """Run a command to its end."""
    running = start_wal2lake(args, env, cwd)
    try:
        return running.wait(timeout)
    finally:
        running.kill()


@dataclass
class Project:
    """A directory with a `wal2lake.toml`, as a user has it."""

    directory: Path
    _started: list[Running] = field(default_factory=list)

    @property
    def lake(self) -> Path:
        return self.directory / "lake"

    def configure(self, dsn: str, more: str = "") -> None:
        """Write the configuration file; `more` is TOML that comes after [source]."""
        text = f'[source]\ndsn = "{dsn}"\n{more}\n'
        if "[[groups]]" not in more:
            text += f'[[groups]]\nname = "default"\nflush_interval = 0.2\ncapture = "{MODE}"\n'
        (self.directory / "wal2lake.toml").write_text(text, "utf-8")

    def run(self, *args: str, env: Mapping[str, str] | None = None, timeout: float = TIMEOUT) -> Finished:
        return self.start(*args, env=env).wait(timeout)

    def start(self, *args: str, env: Mapping[str, str] | None = None) -> Running:
        running = start_wal2lake(list(args), env, self.directory, len(self._started))
        self._started.append(running)
        return running

    def watch(self) -> Any:
        """The same as `status`, asked in this process: for who asks again and again while something else is to run."""
        return Mirror(load_config(self.directory / "wal2lake.toml")).status().to_json()

    def status(self) -> Any:
        """What `status --json` says."""
        finished = self.run("status", "--json")
        assert finished.code == 0, finished.all
        return finished.json

    def close(self) -> None:
        for running in self._started:
            running.kill()

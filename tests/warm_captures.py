"""Capture processes that are forked from an interpreter which has imported everything already.

A capture process imports for 0.6 s of processor time, and the tests start hundreds. Here one server process imports
once, has no threads and no JVM, and forks each capture process; from there on the product's own code runs. Tests of
the capture process itself and of the command line start it as the product does, as a fresh interpreter.
"""

from __future__ import annotations

import gc
import json
import os
import select
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading

_NUMBER = struct.Struct("!i")
_LONGEST_REQUEST = 1 << 20
_lock = threading.Lock()
_servers: dict[int, socket.socket] = {}
"""of this process, by its id: a process that was forked from it has none"""


class WarmProcess:
    """A capture process that the server forked, with the methods of `subprocess.Popen` that its parent uses."""

    def __init__(self, status: socket.socket) -> None:
        self._status = status
        self._lock = threading.Lock()
        self._code: int | None = None
        self.pid = self._read()

    def poll(self) -> int | None:
        """Its exit status; None while it runs."""
        with self._lock:
            if self._code is None and select.select([self._status], [], [], 0)[0]:
                self._end()
            return self._code

    def wait(self) -> int:
        with self._lock:
            return self._code if self._code is not None else self._end()

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def _end(self) -> int:
        self._code = self._read()
        self._status.close()
        return self._code

    def _read(self) -> int:
        (number,) = _NUMBER.unpack(self._status.recv(_NUMBER.size, socket.MSG_WAITALL))
        return int(number)


def launch(link: socket.socket) -> WarmProcess:
    """Fork a capture process that has the other end of `link`, this process's environment and its `sys.path`."""
    request = json.dumps({"environment": dict(os.environ), "path": sys.path}).encode()
    ours, theirs = socket.socketpair()
    with _lock, theirs:
        socket.send_fds(_server(), [request], [link.fileno(), theirs.fileno()])
    return WarmProcess(ours)


def _server() -> socket.socket:
    if os.getpid() not in _servers:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            subprocess.Popen(
                [sys.executable, "-c", "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
                 "import warm_captures; warm_captures.serve(int(sys.argv[1]))", str(theirs.fileno()), json.dumps(sys.path)],
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, process_group=0,
                env={"OPENBLAS_NUM_THREADS": "1", **os.environ},
            ).returncode = 0  # it ends with the socket, and nobody waits for it  # fmt: skip
        _servers[os.getpid()] = ours
    return _servers[os.getpid()]


def serve(fd: int) -> None:
    """The server: fork for each request, send the process id and at last the exit status. Ends with its parent."""
    gc.disable()
    import pyarrow.compute
    import pyarrow.parquet  # noqa: F401

    from wal2lake.capture.child import main

    control = socket.socket(fileno=fd)
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        statuses: dict[int, tuple[int, socket.socket]] = {}
        while True:
            for key, _ in selector.select():
                if key.fileobj is not control:
                    pidfd = key.fd
                    pid, status = statuses.pop(pidfd)
                    selector.unregister(pidfd)
                    os.close(pidfd)
                    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                    with status:
                        status.sendall(_NUMBER.pack(code))
                    continue
                request, fds, _, _ = socket.recv_fds(control, _LONGEST_REQUEST, 2)
                if not request:
                    return
                link, status = fds[0], socket.socket(fileno=fds[1])
                if (pid := os.fork()) == 0:
                    selector.close()
                    for held in (control, status, *(other for _, other in statuses.values())):
                        held.close()
                    for pidfd in statuses:
                        os.close(pidfd)
                    _become(json.loads(request))
                    main(link)
                    return
                os.close(link)
                status.sendall(_NUMBER.pack(pid))
                pidfd = os.pidfd_open(pid)
                statuses[pidfd] = (pid, status)
                selector.register(pidfd, selectors.EVENT_READ)


def _become(request: dict[str, object]) -> None:
    """What a fresh interpreter would have been started with."""
    os.setpgid(0, 0)
    environment, path = request["environment"], request["path"]
    assert isinstance(environment, dict) and isinstance(path, list)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:] = path

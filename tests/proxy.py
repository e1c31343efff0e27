"""A TCP proxy that can go deaf: connections stay open, and nothing passes any more."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self


class Proxy:
    def __init__(self, host: str, port: int) -> None:
        self._to = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._hearing = threading.Event()
        self._hearing.set()
        self._words: bytes | None = None
        self.met = threading.Event()
        self._closed = threading.Event()
        self._sockets: list[socket.socket] = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def go_deaf(self) -> None:
        self._hearing.clear()

    def go_deaf_at(self, words: bytes) -> threading.Event:
        """Let nothing pass from the moment on in which somebody sends these words; the event of that moment."""
        self._words, self.met = words, threading.Event()
        return self.met

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed.set()
        self._hearing.set()
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(self._to)
            self._sockets += [near, far]
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._pass_on, args=(one, other), daemon=True).start()

    def _pass_on(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                if self._words is not None and self._words in data:
                    self.go_deaf()
                    self.met.set()
                self._hearing.wait()
                if self._closed.is_set():
                    return
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)

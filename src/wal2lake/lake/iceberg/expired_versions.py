"""Expired versions of a table, read from earlier metadata files that still describe them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..spark.gateway import jvm
from ..spark.java_errors import chain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_GONE = "org.apache.iceberg.exceptions.NotFoundException"


class ExpiredVersions:
    """The expired versions of a loaded table. Metadata files are read on demand, newest first."""

    def __init__(self, session: SparkSession, loaded: Any) -> None:
        self._session, self._loaded = session, loaded
        self._read: list[Any] = []
        self._unread: Iterator[Any] | None = None

    def snapshot(self, number: int) -> Any:
        """The version with this id; None if no existing metadata file describes it."""
        for metadata in self._read:
            if (found := metadata.snapshot(number)) is not None:
                return found
        if self._unread is None:
            self._unread = self._earlier()
        for metadata in self._unread:
            self._read.append(metadata)
            if (found := metadata.snapshot(number)) is not None:
                return found
        return None

    def _earlier(self) -> Iterator[Any]:
        from py4j.protocol import Py4JJavaError

        parser = jvm(self._session).org.apache.iceberg.TableMetadataParser
        files = [str(entry.file()) for entry in self._loaded.operations().current().previousFiles()]
        for file in reversed(files):
            try:
                yield parser.read(self._loaded.io(), file)
            except Py4JJavaError as error:
                if not any(link.name == _GONE for link in chain(error)):
                    raise

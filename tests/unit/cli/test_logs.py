"""Logging of the command line: compact, on stderr, without passwords."""

from __future__ import annotations

import io
import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest
from rich.console import Console

from wal2lake.cli import logs


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    written = io.StringIO()
    ours = logging.getLogger("wal2lake")
    before = (list(ours.handlers), ours.level, ours.propagate)
    yield written
    ours.handlers, ours.level, ours.propagate = before[0], before[1], before[2]


def configure(stream: io.StringIO, debug: bool = False) -> None:
    logs.configure(Console(file=stream, markup=False, highlight=False, width=40), debug)


def test_a_line_has_the_time_the_level_and_the_message_and_is_not_wrapped(stream: io.StringIO) -> None:
    configure(stream)
    logging.getLogger("wal2lake.source.publishing.slot").info("slot %s [made] %s", "wal2lake_default", "x" * 60)
    (line,) = stream.getvalue().splitlines()
    assert line[8:17] == " INFO    "
    assert line.endswith(f"slot wal2lake_default [made] {'x' * 60}")


def test_debug_lines_come_with_debug_only(stream: io.StringIO) -> None:
    configure(stream)
    logging.getLogger("wal2lake.lake").debug("quiet")
    configure(stream, debug=True)
    logging.getLogger("wal2lake.lake").debug("loud")
    assert "quiet" not in stream.getvalue()
    assert stream.getvalue().count("loud") == 1


@pytest.mark.parametrize(
    "text",
    [
        "cannot connect to postgresql://user:hush@db/shop",
        "conninfo host=db password=hush dbname=x",
        "conninfo password = 'hush hu\\'sh' dbname=x",
    ],
)
def test_a_password_in_a_foreign_text_is_masked(stream: io.StringIO, text: str) -> None:
    configure(stream)
    logging.getLogger("wal2lake").warning("%s", text)
    assert "hush" not in stream.getvalue()
    assert "***" in stream.getvalue()


def test_spark_and_its_gateway_are_silent(stream: io.StringIO) -> None:
    configure(stream)
    assert not logging.getLogger("py4j.java_gateway").isEnabledFor(logging.CRITICAL)


def test_raw_lines_of_psycopg_do_not_reach_the_log(stream: io.StringIO, capfd: pytest.CaptureFixture[str]) -> None:
    configure(stream)
    logging.getLogger("psycopg").warning("error ignored in rollback of %s", "a connection")
    assert "rollback" not in stream.getvalue() + capfd.readouterr().err


@pytest.mark.parametrize("debug", [False, True])
def test_records_of_libraries_at_the_root_logger_are_shown_with_debug_only(debug: bool) -> None:
    said = (
        "import logging\n"
        "from rich.console import Console\n"
        "from wal2lake.cli.logs import configure\n"
        f"configure(Console(stderr=True), {debug})\n"
        "try:\n    1 / 0\nexcept ZeroDivisionError:\n    logging.exception('Exception while sending command.')\n"
    )
    done = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, check=True)
    assert ("Traceback" in done.stderr) is debug
    assert debug or not done.stderr

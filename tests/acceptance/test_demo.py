"""`wal2lake demo`, as a process."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from command import Finished, Project
from waiting import wait_until


def _lake(finished: Finished) -> Path:
    found = re.search(r"The lake stays at (\S+)", finished.out)
    assert found, finished.all
    return Path(found[1])


def _lines_to_paste(out: str, after: str) -> str:
    """The indented lines that follow a heading."""
    text = out[out.index(after) + len(after) :]
    lines = [line for line in text.splitlines() if line.strip()]
    return "\n".join(line.strip() for line in lines[:3])


@pytest.fixture
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory for temporary files that is open to the server's user, whoever runs the tests."""
    directory = Path("/var/tmp") if Path("/var/tmp").is_dir() else Path.home()
    made = directory / f"wal2lake-demo-test-{os.getpid()}"
    made.mkdir(mode=0o711)
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


@pytest.mark.slow
def test_the_demo_ends_with_equal_tables_and_lines_that_read_them(project: Project, temporary: Path) -> None:
    finished = project.run("demo", "--seconds", "15", env={"TMPDIR": str(temporary)})
    assert finished.code == 0, finished.all
    assert "all 4 tables are equal" in finished.out
    assert "Traceback" not in finished.all
    lake = _lake(finished)
    assert [path.name for path in lake.parent.iterdir()] == ["lake"]

    script = _lines_to_paste(finished.out, "without Spark:")
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert shown.returncode == 0 and "customer_id" in shown.stdout, shown.stderr
    assert "lake.public.orders" in _lines_to_paste(finished.out, "with PySpark:")


@pytest.mark.slow
def test_ctrl_c_ends_the_demo_the_same_clean_way(project: Project, temporary: Path) -> None:
    demo = project.start("demo", env={"TMPDIR": str(temporary)})
    wait_until(lambda: "STREAMING" in demo.out or not demo.running, 120, lambda: f"rows arrive:\n{demo.out}{demo.err}")
    port = re.search(r"127\.0\.0\.1:(\d+)", demo.out)
    assert port, demo.out + demo.err
    demo.signal(signal.SIGINT)
    finished = demo.wait(90)
    assert finished.code == 0, finished.all
    assert "all 4 tables are equal" in finished.out
    with pytest.raises(psycopg.OperationalError, match="refused"):
        psycopg.connect(f"postgresql://postgres:x@127.0.0.1:{port[1]}/postgres")


@pytest.mark.slow
def test_the_demo_leaves_the_users_own_database_alone(project: Project, temporary: Path) -> None:
    settings = {"WAL2LAKE_SOURCE__DSN": "postgresql://postgres@127.0.0.1:1/mine", "TMPDIR": str(temporary)}
    demo = project.start("demo", "--seconds", "1", env=settings)
    wait_until(lambda: "the shop is closed" in demo.out or not demo.running, 60, lambda: demo.out + demo.err)
    assert "127.0.0.1:1/" not in demo.out + demo.err
    assert "cannot connect" not in demo.err

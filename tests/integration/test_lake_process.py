"""The JVM's life and a copy that is cut off: in processes of their own, which are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ConfigFactory
from lake_history import copied, describe
from oracle import table_directory
from servers import Database
from waiting import wait_until
from wal2lake import faults
from wal2lake.lake import Lake
from wal2lake.schema import TableId

COPY = """
import sys
from wal2lake.config import Config
from wal2lake.lake import Lake
sys.path.insert(0, {tests!r})
from lake_history import Snapshot, copy_source, describe, source_id
from servers import Database
from wal2lake.schema import TableId
class There:
    def dsn(self, name):
        return {dsn!r}
lake = Lake(Config(source={{"dsn": {dsn!r}}}, lake={{"path": {path!r}}}, spark={{"master": "local[2]"}}))
lake.start()
lake.start()
print("jvm", lake._spark.driver.gateway.proc.pid, flush=True)
database = Database(There(), "x")
schema = describe(database, TableId("public", "t"))
source = copy_source(database, schema)
print("ready", flush=True)
sys.stdin.readline()
with Snapshot(database) as snapshot:
    print("rows", lake.copy(source, snapshot, source_id(schema), 0, lambda rows: None).rows, flush=True)
lake.stop()
lake.stop()
print("stopped", flush=True)
"""


def run_copy(database: Database, path: Path, fault: str = "") -> subprocess.Popen[str]:
    script = COPY.format(tests=str(Path(__file__).parent.parent), dsn=database.dsn, path=str(path))
    environment = {**os.environ, "WAL2LAKE_FAULT": fault} if fault else dict(os.environ)
    return subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def jvm_of(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    word, pid = process.stdout.readline().split()
    assert word == "jvm"
    assert process.stdout.readline() == "ready\n"
    return int(pid)


@pytest.mark.slow
def test_start_is_quiet_and_stop_ends_the_jvm(database: Database, config: ConfigFactory) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1), (2)")
    process = run_copy(database, Path(config().lake.path))
    jvm = jvm_of(process)
    out, err = process.communicate("\n", timeout=120)
    assert out.split() == ["rows", "2", "stopped"], err
    assert err == ""
    assert process.returncode == 0
    assert not alive(jvm)


@pytest.mark.slow
def test_jvm_survives_ctrl_c_and_dies_with_its_process_in_the_middle_of_a_copy(
    database: Database, config: ConfigFactory, lake: Lake
) -> None:
    path = Path(config().lake.path)
    # A lock on the table holds the copy up until the process is killed.
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t SELECT i, 'x' FROM generate_series(1, 5000) i"
    )
    process = run_copy(database, path)
    jvm = jvm_of(process)
    locker = database.connect(autocommit=False)
    locker.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    note = path / "_wal2lake" / "copies"
    try:
        wait_until(lambda: any(note.glob("*.json")), 60, "the copy has begun")
    finally:
        os.kill(jvm, signal.SIGINT)
        survived = alive(jvm)
        process.kill()
        process.communicate()
    assert survived
    wait_until(lambda: not alive(jvm), 60, "the JVM ends")
    locker.rollback()
    (written,) = note.glob("*.json")
    half = Path(json.loads(written.read_text())["location"]) / "data" / "half.parquet"
    half.parent.mkdir(parents=True)
    half.write_bytes(b"what a task had written")
    schema = describe(database, TableId("public", "t"))
    assert lake.applied(schema.id, f"7000000000000000000/5/{schema.oid}") is None
    assert not [file for file in (path / "public").rglob("*") if file.is_file()]
    assert copied(lake, database, "t").rows == 5000


@pytest.mark.slow
def test_copy_killed_after_its_commit_keeps_the_rows_and_leaves_no_note(
    database: Database, config: ConfigFactory, lake: Lake
) -> None:
    path = Path(config().lake.path)
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1), (2)")
    process = run_copy(database, path, faults.COPY_WRITTEN)
    process.communicate("\n", timeout=120)
    assert process.returncode == -signal.SIGKILL
    stray = table_directory(path, "t") / "data" / "stray.parquet"
    stray.write_bytes(b"left by a task that never committed")
    schema = describe(database, TableId("public", "t"))
    applied = lake.applied(schema.id, f"7000000000000000000/5/{schema.oid}")
    assert not stray.exists() and not list((path / "_wal2lake" / "copies").iterdir())
    assert applied is not None
    assert applied.rows == 2
    assert copied(lake, database, "t").rows == 2

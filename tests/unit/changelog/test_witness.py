"""What a change log stores about its source, and damaged files of it."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from wal2lake.changelog import ChangeLog, storage_for
from wal2lake.changelog.witness import Witness
from wal2lake.errors import ChangeLogDamaged
from wal2lake.position import Lsn


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"lsn": "x", "timeline": "x"}', '{"lsn": 1, "timeline": null}'])
@pytest.mark.parametrize("name", ["stored", "timeline"])
def test_a_damaged_file_is_an_error_and_its_remedy_helps(tmp_path: Path, name: str, text: str) -> None:
    witness = Witness(storage_for(tmp_path))
    file = tmp_path / f"{name}.json"
    file.write_text(text)
    with pytest.raises(ChangeLogDamaged) as raised:
        getattr(witness, name)()
    assert str(file) in str(raised.value)
    assert file.read_text() == text
    command = raised.value.remedy.partition("delete the file: ")[2].partition(";")[0]
    subprocess.run(shlex.split(command), check=True)
    assert getattr(witness, name)() is None


def test_a_damaged_record_of_what_was_acknowledged_is_an_error(log: ChangeLog) -> None:
    log.record_acknowledged(Lsn(500))
    assert log.acknowledged() == Lsn(500)
    log.storage.put("acknowledged.json", b'{"ls')
    with pytest.raises(ChangeLogDamaged, match=r"acknowledged\.json"):
        log.acknowledged()

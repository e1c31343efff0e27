"""The id of a lake: made once, kept, and made again where its file is damaged."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from wal2lake.installation import FILE, Installation, is_mark


def test_a_lake_has_one_id_however_many_begin_at_once(tmp_path: Path) -> None:
    root = tmp_path / "lake" / "_wal2lake"
    assert Installation.of(root).id is None
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: Installation.made(root).id, range(32)))
    assert len(set(made)) == 1
    assert Installation.of(root).id == made[0] is not None
    assert is_mark(Installation.of(root).mark)


@pytest.mark.parametrize("text", ["", "[]", "{}", "{"])
def test_a_damaged_file_is_made_again(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    assert Installation.of(tmp_path).id is None
    made = Installation.made(tmp_path)
    assert made.id is not None and Installation.made(tmp_path) == made


def test_the_slot_of_a_group_is_that_of_its_change_log(tmp_path: Path) -> None:
    assert Installation.of(tmp_path).slot("a_b") is None
    (tmp_path / "a_b").mkdir()
    (tmp_path / "a_b" / "group.json").write_text('{"slot": "wal2lake_a_b_c"}')
    assert Installation.of(tmp_path).slot("a_b") == "wal2lake_a_b_c"

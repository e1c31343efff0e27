"""Spools keep messages in order, release truncated ones, and use little memory."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from wal2lake.capture import spool as spool_module
from wal2lake.capture.spool import BUFFER_BYTES, FRAME_BYTES, Piece, Spool, Spools


def piece(messages: Sequence[bytes]) -> Piece:
    lengths = np.fromiter(map(len, messages), np.uint32, len(messages))
    return Piece(np.frombuffer(b"".join(messages), np.uint8), lengths)


def held(spool: Spool, most_bytes: int = 1 << 20) -> list[bytes]:
    found: list[bytes] = []
    for each in spool.pieces(most_bytes):
        ends = np.cumsum(each.lengths)
        data = each.data.tobytes()
        assert len(data) == ends[-1]
        found += [data[end - length : end] for end, length in zip(ends.tolist(), each.lengths.tolist(), strict=True)]
    return found


def in_files(spools: Spools) -> int:
    return sum(path.stat().st_size for path in spools.directory.iterdir())


def test_what_an_earlier_process_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool" / "1.spool").write_bytes(b"left")
    assert in_files(Spools(tmp_path / "spool")) == 0


def test_a_small_transaction_needs_no_file(tmp_path: Path) -> None:
    spools = Spools(tmp_path / "spool")
    spool = spools.open()
    spool.append(piece([b"a", b"bc"]))
    spool.finish()
    assert held(spool) == [b"a", b"bc"]
    assert (spools.bytes, spools.buffered, in_files(spools), spool.size, spool.messages) == (0, 3, 0, 3, 2)


def test_a_large_one_is_in_its_file_and_counted(tmp_path: Path) -> None:
    spools = Spools(tmp_path / "spool")
    spool = spools.open()
    messages = [bytes([number]) * 100_000 for number in range(40)]
    for message in messages:
        spool.append(piece([message]))
    assert held(spool, 250_000) == messages
    assert spools.bytes == in_files(spools) > 3_000_000
    assert spools.buffered < FRAME_BYTES
    spool.remove()
    assert (spools.bytes, spools.buffered, in_files(spools)) == (0, 0, 0)
    spool.remove()
    assert spools.bytes == 0


def test_portions_are_bounded_but_for_a_single_larger_message(tmp_path: Path) -> None:
    spool = Spools(tmp_path / "spool").open()
    spool.append(piece([b"a" * 40, b"b" * 40, b"c" * 300, b"d" * 10]))
    spool.write()
    spool.append(piece([b"e" * 90]))
    assert [len(each.data) for each in spool.pieces(100)] == [80, 300, 10, 90]


def test_portions_may_be_changed_without_changing_the_spool(tmp_path: Path) -> None:
    spool = Spools(tmp_path / "spool").open()
    spool.append(piece([b"written"]))
    spool.write()
    spool.append(piece([b"waiting"]))
    for each in spool.pieces(100):
        each.data[:] = 0
    assert held(spool) == [b"written", b"waiting"]


def test_hundreds_of_transactions_together_hold_a_bounded_buffer(tmp_path: Path) -> None:
    spools = Spools(tmp_path / "spool")
    message = piece([b"x" * 100_000])
    every = [spools.open() for _ in range(300)]
    most = 0
    for _ in range(3):
        for spool in every:
            spool.append(message)
            most = max(most, spools.buffered)
    assert most <= BUFFER_BYTES + 100_000
    assert {len(held(spool)) for spool in every} == {3}


def test_finished_transactions_that_wait_hold_a_bounded_buffer(tmp_path: Path) -> None:
    spools = Spools(tmp_path / "spool")
    for _ in range(300):
        spool = spools.open()
        spool.append(piece([b"x" * 100_000]))
        spool.finish()
    assert spools.buffered <= BUFFER_BYTES


def test_memory_stays_flat_while_a_transaction_grows_and_is_read(tmp_path: Path) -> None:
    spools = Spools(tmp_path / "spool")
    spool = spools.open()
    messages = [b"x" * 100] * 10_000
    tracemalloc.start()
    try:
        for _ in range(60):
            spool.append(piece(messages))
        spool.finish()
        count = sum(len(each.lengths) for each in spool.pieces(1 << 20))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert count == 600_000
    assert most < 12_000_000


def test_closing_removes_the_directory(tmp_path: Path) -> None:
    spools = Spools(tmp_path / "spool")
    spool = spools.open()
    spool.append(piece([b"x" * 2_000_000]))
    spools.close()
    assert not spools.directory.exists()
    assert spools.bytes == 0


@pytest.mark.parametrize("seed", range(20))
def test_cutting_back_leaves_exactly_what_came_before(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool_module, "FRAME_BYTES", 120)
    chance = random.Random(seed)
    spools = Spools(tmp_path / "spool")
    spool = spools.open()
    kept: list[bytes] = []
    for _ in range(200):
        if chance.random() < 0.7:
            messages = [chance.randbytes(chance.randint(1, 60)) for _ in range(chance.randint(1, 5))]
            spool.append(piece(messages))
            kept += messages
        else:
            # Mostly a little, now and then all.
            kept = kept[: max(0, len(kept) - chance.choice([0, 1, 3, 7, 20, 1000]))]
            spool.truncate(sum(map(len, kept)))
        assert (spool.size, spool.messages) == (sum(map(len, kept)), len(kept))
        assert spools.bytes == in_files(spools)
    assert held(spool, 50) == kept
    spool.remove()
    assert (spools.bytes, spools.buffered) == (0, 0)

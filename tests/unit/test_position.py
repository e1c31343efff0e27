import pickle

import pytest

from wal2lake.position import Lsn


@pytest.mark.parametrize("text", ["0/0", "0/16B3748", "16/B374D848", "FFFFFFFF/FFFFFFFF"])
def test_an_lsn_reads_what_it_writes(text: str) -> None:
    assert str(Lsn.parse(text)) == text


@pytest.mark.parametrize("text", ["", "0", "0/", "/0", "0/123456789", "x/y", "0/0 "])
def test_what_is_not_an_lsn_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not an LSN"):
        Lsn.parse(text)


def test_a_commit_record_that_begins_at_a_position_is_not_in_it() -> None:
    position = Lsn.parse("0/1000")
    assert position.includes(0x0FFF)
    assert not position.includes(0x1000)


def test_an_lsn_survives_pickling() -> None:
    lsn = Lsn.parse("1/2")
    assert pickle.loads(pickle.dumps(lsn)) == lsn
    assert isinstance(pickle.loads(pickle.dumps(lsn)), Lsn)

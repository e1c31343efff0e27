import pytest

from wal2lake.retry import TABLE


def test_the_waiting_time_is_shortened_by_a_fifth_at_most() -> None:
    assert (TABLE.after(1, 1.0), TABLE.after(3, 0.5)) == (24, 108)


def test_backoff_doubles_from_30_seconds_to_32_minutes() -> None:
    assert [TABLE.after(n) for n in range(1, 9)] == [30, 60, 120, 240, 480, 960, 1920, 1920]
    assert TABLE.after(1000) == TABLE.most
    with pytest.raises(ValueError, match="counted from 1"):
        TABLE.after(0)

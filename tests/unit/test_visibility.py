"""What a snapshot sees: told from the 32 bits of a transaction's number, and its commit LSN."""

import pytest

from wal2lake.position import Lsn
from wal2lake.visibility import Visibility, distance

EPOCH = 2**32
SEEN = Visibility.of("750:754:752", Lsn(500))
WRAPPED = Visibility.of(f"{EPOCH - 3}:{EPOCH + 3}:{EPOCH - 2},{EPOCH + 1}", Lsn(500))


@pytest.mark.parametrize(
    ("snapshot", "xid", "seen"),
    [
        (SEEN, 749, True), (SEEN, 750, True), (SEEN, 752, False), (SEEN, 753, True), (SEEN, 754, False),
        (SEEN, 2**31, False), (SEEN, EPOCH - 1, True),
        (WRAPPED, EPOCH - 4, True), (WRAPPED, EPOCH - 2, False), (WRAPPED, EPOCH - 1, True), (WRAPPED, 0, True),
        (WRAPPED, 1, False), (WRAPPED, 2, True), (WRAPPED, 3, False), (WRAPPED, 2**31, False),
    ],
)  # fmt: skip
def test_a_transaction_is_seen_as_postgres_sees_it(snapshot: Visibility, xid: int, seen: bool) -> None:
    assert snapshot.sees(499, xid) is seen


def test_nothing_is_seen_that_committed_after_the_snapshot() -> None:
    assert SEEN.sees(499, 700)
    assert not SEEN.sees(500, 700)


@pytest.mark.parametrize("snapshot", [SEEN, WRAPPED, Visibility.of("9:9:", Lsn(2**33))])
def test_its_text_says_all_of_it(snapshot: Visibility) -> None:
    assert Visibility.parse(str(snapshot)) == snapshot


def test_the_nearest_of_all_epochs_is_meant() -> None:
    assert [distance(xid % EPOCH, 5 * EPOCH) for xid in (-1, 0, 1, 2**31 - 1)] == [-1, 0, 1, 2**31 - 1]

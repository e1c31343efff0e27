"""Messages in one buffer, and what the reading thread knows about them."""

from __future__ import annotations

import pytest

from stream_encoder import begin, commit, insert, relation, table
from wal2lake.decode import Intake, Messages, slices
from wal2lake.decode import intake as intake_module

ONE = table({"id": "int", "name": "string"}, oid=1)
FIRST = [begin(100), relation(ONE), insert(1, ["1", "a"]), commit(100)]
SECOND = [begin(200), insert(1, ["2", "b"]), insert(1, ["3", "c"])]


def flat(parts: list[Messages]) -> list[bytes]:
    return [message for part in parts for message in part]


def test_messages_are_the_sequence_that_they_were_made_of() -> None:
    made = Messages.of(FIRST)
    assert list(made) == FIRST and [made[n] for n in range(len(made))] == FIRST
    assert made.kinds.tobytes() == b"BRIC" and made.size == sum(map(len, FIRST))
    assert list(made[1:3]) == FIRST[1:3] and list(made[2:]) == FIRST[2:] and list(made[2:1]) == []
    assert made[1:3].kinds.tobytes() == b"RI"


def test_what_is_complete_is_taken_before_what_is_open_and_all_of_it_once() -> None:
    intake = Intake()
    for message in [*FIRST, *SECOND]:
        intake.feed([message])
    assert intake.has_complete and intake.in_transaction
    assert (intake.complete_bytes, intake.open_bytes) == (sum(map(len, FIRST)), sum(map(len, SECOND)))
    with pytest.raises(RuntimeError):
        intake.take_open()
    assert flat(intake.take_complete()) == FIRST and flat(intake.take_open()) == SECOND
    assert (intake.pending_bytes, intake.has_complete, intake.in_transaction) == (0, False, True)
    intake.feed([commit(200)])
    assert flat(intake.take_complete()) == [commit(200)] and not intake.in_transaction


def test_less_is_worth_decoding_while_the_decoder_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake_module, "SLICE_BYTES", 2 * sum(map(len, FIRST)))
    intake = Intake()
    intake.feed([*FIRST, *SECOND])
    assert intake.complete_is_worth_decoding(idle=True) and not intake.complete_is_worth_decoding(idle=False)
    intake.feed([commit(200), *FIRST])
    assert intake.complete_is_worth_decoding(idle=False)
    intake.take_complete()
    assert not intake.complete_is_worth_decoding(idle=True)


@pytest.mark.parametrize("most_bytes", [1, 50, 100, 10_000])
@pytest.mark.parametrize("together", [1, 2, 7])
def test_slices_are_small_and_hold_every_message_once_in_order(most_bytes: int, together: int) -> None:
    stream = [*FIRST, *SECOND] * 5
    parts = [Messages.of(stream[at : at + together]) for at in range(0, len(stream), together)]
    found = list(slices(parts, most_bytes))
    assert [message for some in found for message in flat(some)] == stream
    for some in found:
        assert some and (sum(part.size for part in some) <= most_bytes or sum(map(len, some)) == 1)

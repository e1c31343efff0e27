"""The lifecycle of a table: directed cases, random sequences of events, and a search for states that lead nowhere."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise, product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wal2lake import retry
from wal2lake.errors import Advice, ErrorKind
from wal2lake.position import Lsn
from wal2lake.schema import TableId
from wal2lake.state import TableRecord, events
from wal2lake.state.events import EVENTS, TRANSITIONS, FailedAttempt, IllegalTransition, may_become
from wal2lake.state.lifecycle import (
    VARIANTS,
    Arriving,
    AtSource,
    CatchUp,
    Dropped,
    Errored,
    LifecycleState,
    Paused,
    Pending,
    Retry,
    Snapshot,
    Streaming,
    TableState,
    Variant,
    changes_are_useless,
    is_drained,
    may_be_copied,
    needs_copy,
    new_table_needs_copy,
    restored,
    retry_due,
    still_waits,
    to_store,
)

NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)
LATER = NOON + timedelta(days=1)
BROKEN = Advice(ErrorKind.TRANSIENT, "broken", "wait")
SPARK_LOST = Advice(ErrorKind.TRANSIENT, "Spark's JVM is gone", "wait", interrupted=True)
ADVICES = (
    BROKEN,
    SPARK_LOST,
    Advice(ErrorKind.CONFIGURATION, "wrong", "change it"),
    Advice(ErrorKind.RESOURCE, "full", "room"),
)
ATTEMPTS = [(FailedAttempt(advice, NOON, at_once=at_once),) for advice, at_once in product(ADVICES, (False, True))]
FAILED = FailedAttempt(BROKEN, NOON)
REFUSED = AtSource(refusal=BROKEN)
GONE = AtSource(dropped_at=Lsn(20))

ARGUMENTS: dict[str, list[tuple[Any, ...]]] = {
    "copy_began": [(3, None), (3, NOON)],
    "copy_blocked": ATTEMPTS,
    "failed": ATTEMPTS,
    "goal_set": [(Lsn(10),)],
    "position_unusable": [(attempt, only) for (attempt,), only in product(ATTEMPTS, (False, True))],
    "refusal_noted": [(BROKEN,)],
    "refused": [(FAILED,)],
    "dropped_at_source": [(Lsn(20),)],
    "retry_requested": [(NOON,)],
    "spark_returned": [(NOON,)],
}
"""what each event is given; the others are given nothing"""
CONDITIONAL = {"refused", "drop_completed"}
"""events of a table that is refused, or dropped, at its source"""


def happen(state: LifecycleState, name: str, *arguments: Any) -> LifecycleState:
    after: LifecycleState = getattr(events, name)(state, *arguments)
    return after


def after_restart(state: LifecycleState, requested: bool) -> LifecycleState:
    record = TableRecord("g", 7, TableId("public", "t"), **to_store(state))  # type: ignore[arg-type]  # names of fields
    return restored(record, requested)


# ---- the table of transitions


def test_the_path_of_a_table_is_legal() -> None:
    path = [Pending, Snapshot, CatchUp, Streaming]
    assert all(may_become(now, then) for now, then in pairwise(path))


def test_a_table_that_was_not_copied_never_streams() -> None:
    assert not may_become(Pending, Streaming)
    assert not may_become(Snapshot, Streaming)
    assert not may_become(Errored, Streaming)


def test_every_state_can_be_left_and_can_fail() -> None:
    assert set(TRANSITIONS) == set(VARIANTS) and {state.state for state in VARIANTS} == set(TableState)
    for state, following in TRANSITIONS.items():
        if state is not Dropped:
            assert following - {state}
            assert following >= ({Dropped} if state is Arriving else {Dropped, Errored})


def test_a_dropped_table_never_comes_back() -> None:
    assert TRANSITIONS[Dropped] == frozenset()


def test_an_event_that_the_state_does_not_allow_is_refused() -> None:
    with pytest.raises(IllegalTransition, match="copy_committed can't happen to a table that is STREAMING"):
        events.copy_committed(Streaming())
    with pytest.raises(IllegalTransition, match="failed can't happen to a table that is DROPPED"):
        events.failed(Dropped(), FAILED)


# ---- copies


def test_a_copy_that_is_requested_while_one_is_made_is_still_requested_when_it_is_committed() -> None:
    copying = events.copy_began(events.copy_accepted(Streaming()), 3, NOON)
    assert copying == Snapshot(upto=3, requested_at=NOON)
    assert events.copy_committed(copying) == CatchUp()
    assert events.copy_committed(events.copy_requested(copying)) == CatchUp(copy_requested=True)


def test_the_failure_that_a_copy_repairs_is_shown_until_the_copy_is_committed() -> None:
    errored = events.copy_requested(events.failed(Streaming(), FAILED))
    copying = events.copy_began(events.copy_accepted(errored), 3, None)
    assert to_store(copying)["error"] == "broken" and copying.state is TableState.SNAPSHOT
    assert to_store(events.copy_committed(copying))["error"] is None


@pytest.mark.parametrize(
    "state",
    [
        events.failed(Snapshot(), FAILED),
        events.copy_blocked(Pending(copy_requested=True), FAILED),
        events.refused(Streaming(source=REFUSED), FAILED),
    ],
    ids=["failed", "blocked", "refused"],
)
def test_a_copy_that_did_not_come_about_is_what_is_tried_again(state: LifecycleState) -> None:
    assert isinstance(state, Errored) and (state.retry, state.copy_requested) == (Retry.COPY, False)
    assert needs_copy(state) and needs_copy(events.paused(state)) and changes_are_useless(state)


def test_a_table_that_needs_a_copy_is_not_continued_from_the_lake() -> None:
    with pytest.raises(IllegalTransition, match="needs a copy"):
        events.found_in_lake(Paused(copy_requested=True))


def test_a_table_that_only_a_copy_helps_waits_for_a_request() -> None:
    state = events.position_unusable(Streaming(), FAILED, only_copy_helps=True)
    assert changes_are_useless(state) and not needs_copy(state)
    assert changes_are_useless(events.paused(state)) and not needs_copy(events.paused(state))
    assert needs_copy(events.copy_requested(state))


def test_a_new_table_is_copied_unless_it_would_replace_rows_that_are_to_stay() -> None:
    assert new_table_needs_copy(replaces_dropped=False, may_replace=False)
    assert new_table_needs_copy(replaces_dropped=True, may_replace=True)
    assert not new_table_needs_copy(replaces_dropped=True, may_replace=False)


# ---- what is seen at the source


def test_a_table_that_is_refused_is_not_retried_and_copied_when_that_ends() -> None:
    refused = events.refused(events.refusal_noted(Streaming(), BROKEN), FAILED)
    assert not retry_due(refused, LATER) and not may_be_copied(refused)
    with pytest.raises(IllegalTransition, match="refused or dropped"):
        events.copy_accepted(refused)
    allowed = events.refusal_ended(refused)
    assert retry_due(allowed, LATER) and needs_copy(allowed)
    assert events.copy_accepted(allowed).state is TableState.PENDING


def test_a_pause_keeps_a_refusal_and_a_drop() -> None:
    state = events.dropped_at_source(events.refusal_noted(Streaming(), BROKEN), Lsn(20))
    paused = events.paused(state)
    assert isinstance(paused, Paused) and paused.source == AtSource(BROKEN, Lsn(20))


def test_a_table_is_not_stopped_for_a_reason_that_was_not_noted() -> None:
    with pytest.raises(IllegalTransition, match="noted"):
        events.refused(Streaming(), FAILED)


@pytest.mark.parametrize("state", [CatchUp(source=GONE), Streaming(source=GONE)], ids=str)
def test_a_dropped_table_first_gets_what_was_captured_of_it(state: LifecycleState) -> None:
    assert not is_drained(state, waits=True, logged=Lsn(30))
    assert not is_drained(state, waits=False, logged=Lsn(19))
    assert is_drained(state, waits=False, logged=Lsn(20))


@pytest.mark.parametrize("state", [Pending(source=GONE), events.failed(Streaming(source=GONE), FAILED)], ids=str)
def test_a_dropped_table_that_applies_nothing_waits_for_nothing(state: LifecycleState) -> None:
    assert is_drained(state, waits=True, logged=Lsn(0))


def test_a_dropped_table_that_a_copy_was_requested_for_waits_for_nothing() -> None:
    state = events.copy_requested(Streaming(source=GONE))
    assert is_drained(state, waits=True, logged=Lsn(30)), "no copy can be made, and its changes may be deleted"


def test_a_table_that_exists_is_not_drained_and_does_not_end() -> None:
    assert not is_drained(Streaming(), waits=False, logged=Lsn(30))
    with pytest.raises(IllegalTransition, match="exists"):
        events.drop_completed(Streaming())


# ---- moves between groups


def test_nothing_is_done_for_a_table_before_it_is_taken_over() -> None:
    own = {"taken_over", "refusal_noted", "refusal_ended", "dropped_at_source", "drop_completed"}
    assert {event.name for event in EVENTS if Arriving in event.moves} == own
    assert not needs_copy(Arriving()) and not changes_are_useless(Arriving())
    assert events.taken_over(Arriving(source=REFUSED)) == Pending(source=REFUSED)


# ---- errors


def test_failures_in_a_row_wait_longer_until_something_is_committed() -> None:
    state: LifecycleState = Streaming()
    waits = []
    for _ in range(3):
        state = events.failed(state, FAILED)
        assert isinstance(state, Errored) and state.failure.retry_at is not None
        waits.append((state.failure.retry_at - NOON).total_seconds())
        state = events.found_in_lake(state)
    assert waits == [retry.TABLE.after(number) for number in (1, 2, 3)]
    assert events.batch_committed(state) == CatchUp()


def test_a_run_that_is_to_end_waits_for_no_transient_error() -> None:
    state = events.failed(Streaming(), FailedAttempt(BROKEN, NOON, at_once=True))
    assert retry_due(state, NOON)
    wrong = events.failed(Streaming(), FailedAttempt(ADVICES[2], NOON, at_once=True))
    assert not retry_due(wrong, NOON) and retry_due(wrong, LATER)


def test_only_the_first_failure_with_the_end_of_spark_is_tried_again_with_its_return() -> None:
    first = events.failed(Streaming(), FailedAttempt(SPARK_LOST, NOON))
    assert isinstance(first, Errored) and first.interrupted
    assert retry_due(events.spark_returned(first, NOON), NOON)
    second = events.failed(first, FailedAttempt(SPARK_LOST, NOON))
    assert isinstance(second, Errored) and not second.interrupted


def test_a_pause_ends_the_row_of_failures_and_keeps_what_is_to_be_done() -> None:
    state = events.copy_requested(events.failed(Snapshot(failures=2), FAILED))
    assert events.paused(state) == Paused(copy_requested=True, retry=Retry.COPY)


# ---- a restart


def test_a_restart_copies_what_was_being_copied() -> None:
    assert after_restart(Snapshot(upto=3), requested=True) == Pending(copy_requested=True)


def test_a_restart_waits_for_a_transient_error_and_not_for_another() -> None:
    state = after_restart(events.failed(Snapshot(), FAILED), requested=True)
    assert isinstance(state, Errored) and (state.retry, state.copy_requested) == (Retry.COPY, False)
    assert still_waits(state, NOON) and not still_waits(state, LATER)
    wrong = after_restart(events.failed(Streaming(), FailedAttempt(ADVICES[2], NOON)), requested=False)
    assert isinstance(wrong, Errored) and wrong.retry is Retry.POSITION and not still_waits(wrong, NOON)


def test_a_dropped_table_that_a_restored_source_has_again_is_pending() -> None:
    assert after_restart(Dropped(), requested=False) == Pending()


# ---- random sequences of events


@dataclass
class Copies:
    """Which copies are owed, as a plain reading of the events."""

    owed: bool
    under_way: bool = False

    def note(self, name: str) -> None:
        if name in ("copy_requested", "copy_due", "copy_accepted", "not_found_in_lake", "copy_blocked", "refused"):
            self.owed = True
        elif name == "copy_began":
            self.owed, self.under_way = False, True
        elif name == "copy_committed":
            self.under_way = False
        elif name in ("failed", "copy_broken_off"):
            self.owed, self.under_way = self.owed or self.under_way, False


@dataclass
class Seen:
    """What was seen at the source, as a plain reading of the events."""

    refused: bool = False
    dropped: bool = False

    def note(self, name: str) -> None:
        self.refused = (self.refused or name == "refusal_noted") and name != "refusal_ended"
        self.dropped = self.dropped or name == "dropped_at_source"


def check(state: LifecycleState, copies: Copies, seen: Seen) -> None:
    if isinstance(state, Dropped):
        assert seen.dropped
        return
    assert (state.source.refusal is not None, state.source.dropped_at is not None) == (seen.refused, seen.dropped)
    assert may_be_copied(state) == (not seen.refused and not seen.dropped)
    assert seen.dropped or not is_drained(state, waits=False, logged=Lsn(20))
    assert not (seen.refused and retry_due(state, LATER))
    if isinstance(state, Arriving):
        return
    assert isinstance(state, Snapshot) == copies.under_way
    assert needs_copy(state) == (copies.owed or copies.under_way), "a copy is forgotten, or made for nothing"
    assert not needs_copy(state) or changes_are_useless(state)
    assert state.failures == 0 or not isinstance(state, Streaming | Paused)
    assert (to_store(state)["error"] is not None) >= isinstance(state, Errored)
    if isinstance(state, Errored):
        assert state.failures > 0 and not retry_due(state, NOON - timedelta(seconds=1))
        assert retry_due(state, LATER) == (not seen.refused)
    revived = after_restart(state, copies.owed or copies.under_way)
    assert revived.state is (TableState.PENDING if isinstance(state, Snapshot) else state.state)
    assert needs_copy(revived) == needs_copy(state), "a restart forgets a copy, or makes one for nothing"


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_no_sequence_of_events_leads_to_an_illegal_state(data: st.DataObject) -> None:
    copies = Copies(owed=data.draw(st.booleans()))
    begins = data.draw(st.sampled_from(["PENDING", "CATCHUP", "STREAMING", "PAUSED"]))
    state = restored(TableRecord("g", 7, TableId("public", "t"), TableState(begins)), copies.owed)
    seen = Seen()
    if data.draw(st.integers(0, 4)) == 0:
        state, copies = Arriving(), Copies(owed=False)
    for event in data.draw(st.lists(st.sampled_from(EVENTS), max_size=40)):
        arguments = data.draw(st.sampled_from(ARGUMENTS.get(event.name, [()])))
        try:
            after = happen(state, event.name, *arguments)
        except IllegalTransition:
            assert type(state) not in event.moves or needs_copy(state) or seen != Seen() or event.name in CONDITIONAL
            continue
        assert type(after) in TRANSITIONS[type(state)] and type(after) is event.moves[type(state)]
        state = after
        copies.note(event.name)
        seen.note(event.name)
        check(state, copies, seen)
        if data.draw(st.integers(0, 9)) == 0 and not isinstance(state, Dropped | Arriving):
            seen = Seen()
            state, copies = after_restart(state, copies.owed or copies.under_way), replace(copies, under_way=False)
            copies.owed = needs_copy(state)


# ---- no dead end


def following(state: LifecycleState, names: Collection[str]) -> Iterator[LifecycleState]:
    """Every state that one event leads to; the number of failures is cut off, so that there are not endlessly many."""
    for name in names:
        for arguments in ARGUMENTS.get(name, [()]):
            try:
                after = happen(state, name, *arguments)
            except IllegalTransition:
                continue
            yield after if isinstance(after, Dropped) else replace(after, failures=min(after.failures, 2))


def dead_ends(names: Collection[str]) -> set[Variant]:
    """States that can be reached by events, and from which none leads to STREAMING, or to DROPPED after a DROP."""
    begins: list[LifecycleState] = [Arriving()]
    begins += [
        restored(TableRecord("g", 7, TableId("public", "t"), state, kind="transient", retry_at=NOON), requested)
        for state, requested in product(TableState, (False, True))
    ]
    before: dict[LifecycleState, set[LifecycleState]] = {state: set() for state in begins}
    ahead = list(before)
    while ahead:
        state = ahead.pop()
        for after in following(state, names):
            if after not in before:
                before[after] = set()
                ahead.append(after)
            before[after].add(state)
    streams: list[LifecycleState] = [
        state for state in before
        if isinstance(state, Dropped) or (isinstance(state, Streaming) and state.source == AtSource())
    ]  # fmt: skip
    leads = set(streams)
    while streams:
        earlier = before[streams.pop()] - leads
        leads |= earlier
        streams.extend(earlier)
    return {type(state) for state in set(before) - leads}


def test_every_state_that_can_be_reached_leads_back_to_streaming() -> None:
    assert dead_ends([event.name for event in EVENTS if event.name != "dropped_at_source"]) == set()


def test_every_state_of_a_dropped_table_leads_to_its_end() -> None:
    assert dead_ends([event.name for event in EVENTS]) == set()
    assert dead_ends([event.name for event in EVENTS if event.name != "drop_completed"]) == set(VARIANTS) - {Dropped}


def test_the_search_finds_a_dead_end() -> None:
    names = [event.name for event in EVENTS if event.name not in ("copy_due", "copy_accepted")]
    assert Paused in dead_ends([name for name in names if name != "dropped_at_source"])


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_a_table_streams_when_nothing_fails_any_more(data: st.DataObject) -> None:
    state: LifecycleState = Pending(copy_requested=True)
    for event in data.draw(st.lists(st.sampled_from(EVENTS), max_size=40)):
        if event.name not in ("dropped_at_source", "refusal_noted"):
            try:
                state = happen(state, event.name, *data.draw(st.sampled_from(ARGUMENTS.get(event.name, [()]))))
            except IllegalTransition:
                continue
    for _ in range(6):
        if isinstance(state, Streaming) and not state.copy_requested:
            return
        state = proceed(state)
    pytest.fail(f"it is {state}")


def proceed(state: LifecycleState) -> LifecycleState:
    """The next thing that the registry or the table work does, on a good day."""
    match state:
        case Snapshot():
            return events.copy_committed(state)
        case Pending() if state.copy_requested:
            return events.copy_began(state, 1, None)
        case CatchUp() | Streaming() if state.copy_requested:
            return events.copy_accepted(state)
        case CatchUp():
            return events.caught_up(state)
        case Errored():
            assert retry_due(state, LATER)
    return events.copy_due(state) if needs_copy(state) else events.found_in_lake(state)

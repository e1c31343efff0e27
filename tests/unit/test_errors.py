"""Errors carry their message and remedy, survive pickling, and never show a foreign error's text."""

from __future__ import annotations

import errno
import pickle

import pytest

from wal2lake import errors
from wal2lake.errors import ErrorKind, Wal2LakeError, advise


def every_error() -> list[type[Wal2LakeError]]:
    found, queue = [], [Wal2LakeError]
    while queue:
        kind = queue.pop()
        found.append(kind)
        queue += [below for below in kind.__subclasses__() if below.__module__ == errors.__name__]
    return found


@pytest.mark.parametrize("kind", every_error())
def test_every_error_has_a_message_and_a_remedy_and_survives_pickling(kind: type[Wal2LakeError]) -> None:
    error = kind(table="public.orders", cause="{braces} stay", sql_name='"public"."orders"')
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert (str(copy), copy.remedy) == (str(error), error.remedy)
    assert str(error)
    assert error.remedy
    assert kind.__name__ in (errors.__doc__ or "")


def test_the_docstring_is_the_message() -> None:
    error = errors.SlotLost(slot="wal2lake_default", cause="was dropped", lsn="0/10")
    assert str(error) == (
        "replication slot wal2lake_default was dropped: changes committed after 0/10 were not captured and may be "
        "missing"
    )
    assert error.remedy == "re-copy the tables with: wal2lake tables resync --all"


def test_a_remedy_given_with_the_error_wins_and_may_hold_braces() -> None:
    remedy = "set [spark] conf = { 'spark.driver.memory' = '4g' }"
    assert errors.SourceRefused(operation="x", object="y", cause="z", remedy=remedy).remedy == remedy


def test_a_given_remedy_may_hold_a_line_of_configuration() -> None:
    remedy = "conf = { 'spark.driver.memory' = '4g' }, mask = {}, {other.name}"
    assert advise(errors.LakeError(operation="x", cause="y", remedy=remedy)).remedy == remedy


def test_an_error_of_a_lake_table_names_its_source_table() -> None:
    error = errors.LakeTableGone(table="lake.name")
    about = error.about("public.t")
    assert str(about) == "public.t: its lake table does not exist"
    assert about.remedy == "re-copy it with: wal2lake tables resync 'public.t'"


def test_a_field_that_was_not_given_is_a_question_mark() -> None:
    assert str(errors.TableMissing()) == "table ? does not exist in the source database"


def test_advice_for_our_own_error_is_what_it_says() -> None:
    advice = advise(errors.GroupHeld(group="default", holder="wal2lake on a, process 1"))
    assert advice.kind is ErrorKind.TRANSIENT
    assert advice.message == "group default is already run by wal2lake on a, process 1"


def test_advice_for_a_full_disk_is_about_the_lake() -> None:
    advice = advise(OSError(errno.ENOSPC, "No space left on device", "/lake/x"))
    assert advice.kind is ErrorKind.RESOURCE
    assert "/lake/x" in advice.message


def test_advice_for_a_foreign_error_holds_its_name_and_nothing_of_its_text() -> None:
    advice = advise(ValueError("row value 4711"))
    assert advice.message == "unexpected ValueError"
    assert "4711" not in advice.message + advice.remedy


def test_advice_when_memory_ends() -> None:
    assert advise(MemoryError()).kind is ErrorKind.RESOURCE

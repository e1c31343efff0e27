"""The messages of other output plugins: read whole, or refused."""

from __future__ import annotations

import json

import pytest

from wal2lake.decode.plugins import test_decoding as plain
from wal2lake.decode.plugins import wal2json
from wal2lake.decode.plugins.told import (
    Ambiguous,
    Began,
    Cell,
    Ended,
    NotUnderstood,
    RowTold,
    TableName,
    Truncated,
    Unchanged,
)

T = TableName("public", "t")


def row(text: str) -> RowTold:
    told = plain.parse(text.encode())
    assert isinstance(told, RowTold)
    return told


def test_a_transaction_of_test_decoding() -> None:
    assert plain.parse(b"BEGIN 4294967295") == Began(4294967295, None)
    assert plain.parse(b"COMMIT 7 (at 2000-01-01 00:00:01.000002+00)") == Ended(7, 1_000_002, None)
    assert plain.parse(b"COMMIT 7 (at 1999-12-31 23:00:00-01)") == Ended(7, 0, None)


def test_values_of_test_decoding() -> None:
    told = row(
        """table public.t: INSERT: i[integer]:-1 n[numeric]:NaN b[boolean]:true x[bit varying]:B'' y[bit]:B'10'"""
        """ z[text]:null s[text]:'null' q[text]:'''' m[text]:'a\nb '' c[text]:''d''' u[text]:unchanged-toast-datum"""
    )
    assert told.complete and told.old is None and told.table == T
    assert [cell.value for cell in told.new] == [
        b"-1", b"NaN", b"t", b"", b"10", None, b"null", b"'", b"a\nb ' c[text]:'d'", Unchanged.TOAST,
    ]  # fmt: skip


def test_names_of_test_decoding() -> None:
    told = row(
        'table "a.""b"."c: UPDATE:": DELETE: "new-tuple"[integer[]]:\'{1}\' "]:"[s."t]:""u"[]]:\'x\' c["char"]:\'y\''
    )
    assert told.table == TableName('a."b', "c: UPDATE:")
    assert told.old == (
        Cell("new-tuple", "integer[]", b"{1}"), Cell("]:", 's."t]:""u"[]', b"x"), Cell("c", '"char"', b"y"),
    )  # fmt: skip


def test_old_rows_of_test_decoding() -> None:
    told = row("table public.t: UPDATE: old-key: id[integer]:1 new-tuple: id[integer]:2 v[text]:' new-tuple:'")
    assert told.old == (Cell("id", "integer", b"1"),)
    assert told.new[1].value == b" new-tuple:"
    assert row("table public.t: UPDATE: id[integer]:2").old is None
    assert row("table public.t: DELETE: (no-tuple-data)").old is None


def test_truncates_of_test_decoding() -> None:
    both = Truncated((T, TableName("S", "a, b.c: TRUNCATE:")))
    for flags in (" (no-flags)", " restart_seqs", " cascade", " restart_seqs cascade"):
        assert plain.parse(f'table public.t, "S"."a, b.c: TRUNCATE:": TRUNCATE:{flags}'.encode()) == both


@pytest.mark.parametrize(
    "text",
    [
        "", "BEGIN", "COMMIT 7", "table public.t", "table t: INSERT: id[integer]:1", "table public.t: MERGE: x",
        "table public.t: INSERT: id[integer]:1 v[text]:'open", "table public.t: INSERT: id[integer]:1 more",
        "table public.t: INSERT: (no-tuple-data)", "table public.t: TRUNCATE: all",
        "table public.t: UPDATE: old-key: id[integer]:1", "table a.b, c.d: INSERT: id[integer]:1",
    ],
)  # fmt: skip
def test_what_is_not_in_the_form_of_test_decoding_is_refused(text: str) -> None:
    with pytest.raises(NotUnderstood):
        plain.parse(text.encode())


def wal2json_row(**told: object) -> bytes:
    return json.dumps({"schema": "public", "table": "t", **told}).encode()


def test_values_of_wal2json() -> None:
    columns = [
        {"name": "a", "typeoid": 23, "value": "1"}, {"name": "b", "typeoid": 16, "value": False},
        {"name": "c", "typeoid": 17, "value": "00ff"}, {"name": "d", "typeoid": 25, "value": "\u00e9\n"},
        {"name": "e", "typeoid": -1, "value": None},
    ]  # fmt: skip
    told = wal2json.parse(wal2json_row(action="I", columns=columns))
    assert isinstance(told, RowTold) and told.complete
    assert [cell.value for cell in told.new] == [b"1", b"f", b"\\x00ff", "é\n".encode(), None]
    assert told.new[-1].type == 0xFFFFFFFF


def test_numbers_of_an_old_wal2json_keep_every_digit_and_a_null_is_ambiguous() -> None:
    text = (
        b'{"action":"U","schema":"public","table":"t","columns":[{"name":"a","typeoid":1700,"value":1.50},'
        b'{"name":"b","typeoid":701,"value":1e+100},{"name":"c","typeoid":20,"value":9223372036854775807},'
        b'{"name":"d","typeoid":700,"value":null},{"name":"e","typeoid":23,"value":null}],"identity":[]}'
    )
    told = wal2json.parse_inexact(text)
    assert isinstance(told, RowTold) and not told.complete
    found = [cell.value for cell in told.new]
    assert found == [b"1.50", b"1e+100", b"9223372036854775807", Ambiguous.NULL, None]
    exact = wal2json.parse(text)
    assert isinstance(exact, RowTold) and exact.new[3].value is None


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"{}", b'{"action":"X"}', b'{"action":"I","table":"t"}', b'{"action":"B"}']
)
def test_what_is_not_in_the_form_of_wal2json_is_refused(text: bytes) -> None:
    with pytest.raises(NotUnderstood):
        wal2json.parse(text)

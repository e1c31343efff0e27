"""Random streams of changes, against a decoder that reads them one after the other."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from stream_encoder import (
    UNCHANGED,
    Cell,
    begin,
    commit,
    decoder,
    delete,
    insert,
    relation,
    rows,
    table,
    truncate,
    update,
)
from wal2lake.schema import ReplicaIdentity, TableSchema

COLUMNS = {"v": "string", "id": "string", "w": "string"}
KEYED = table(COLUMNS, oid=1, name="keyed")
FULL = table(COLUMNS, oid=2, name="full", identity=ReplicaIdentity.FULL)
KEYLESS = table(COLUMNS, oid=3, name="keyless", key=(), identity=ReplicaIdentity.FULL)
META = ("_op", "_commit_lsn", "_seq", "_unchanged")

Change = tuple[str, TableSchema, list[Cell] | None, list[Cell] | None]
"""what happens, where, the old tuple and the new one"""
keys = st.sampled_from(["", "a", "b", "k" * 12, "k" * 13, "k" * 14])
words = st.text(st.sampled_from("xé\n"), max_size=20)
texts = st.one_of(st.none(), words)
new_values = st.one_of(texts, st.just(UNCHANGED))


@st.composite
def changes(draw: st.DrawFn) -> Change:
    schema = draw(st.sampled_from([KEYED, FULL, KEYLESS]))
    op = draw(st.sampled_from("IUDT"))
    row: list[Cell] = [draw(new_values if op == "U" else texts), draw(keys), draw(texts)]
    # Where something is unchanged, the old row has it.
    whole: list[Cell] = [draw(words), draw(keys), draw(texts)]
    old = whole if schema.identity is ReplicaIdentity.FULL else [None, whole[1], None]
    if op == "U" and schema is KEYED and draw(st.booleans()):
        return op, schema, None, row
    return op, schema, old if op in "UD" else None, row if op in "IU" else None


def written(change: Change) -> bytes:
    op, schema, old, new = change
    full = schema.identity is ReplicaIdentity.FULL
    match op:
        case "I":
            return insert(schema.oid, new or ())
        case "U":
            return update(schema.oid, new or (), None if full else old, old if full else None)
        case "D":
            return delete(schema.oid, None if full else old, old if full else None)
        case _:
            return truncate(schema.oid)


def expected(change: Change, lsn: int, seq: int) -> list[tuple[Any, ...]]:
    op, schema, old, new = change
    if op == "T":
        return []
    if op == "D":
        assert old is not None
        return [(*old, "D", lsn, seq, None, *([False, None] if schema.key else []))]
    assert new is not None
    filled = list(new)
    if old is not None:
        filled = [was if now is UNCHANGED and was is not None else now for was, now in zip(old, new, strict=True)]
    unchanged = [place for place, cell in enumerate(filled) if cell is UNCHANGED] or None
    final = [None if cell is UNCHANGED else cell for cell in filled]
    if op == "U" and not schema.key:
        return [(*(old or ()), "D", lsn, seq, None), (*final, "I", lsn, seq + 1, None)]
    moved = old is not None and old[1] != final[1]
    tail = [moved, old[1] if old is not None and moved else None] if schema.key else []
    return [(*final, op, lsn, seq, unchanged, *tail)]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.lists(changes(), max_size=12), min_size=1, max_size=6),
    st.lists(st.integers(0, 40), max_size=3),
)
def test_a_random_stream_is_what_reading_it_change_by_change_gives(
    transactions: list[list[Change]], stops: list[int]
) -> None:
    stream = [begin(1), *(relation(schema) for schema in (KEYED, FULL, KEYLESS)), commit(1)]
    wanted: dict[int, list[tuple[Any, ...]]] = {1: [], 2: [], 3: []}
    for number, transaction in enumerate(transactions, 1):
        stream.append(begin(100 * number))
        for place, change in enumerate(transaction):
            stream.append(written(change))
            wanted[change[1].oid] += expected(change, 100 * number, 2 * place)
        stream.append(commit(100 * number))

    made = decoder(KEYED, FULL, KEYLESS)
    found: dict[int, list[tuple[Any, ...]]] = {1: [], 2: [], 3: []}
    bounds = [0, *sorted(min(stop, len(stream)) for stop in stops), len(stream)]
    for start, end in pairwise(bounds):
        made.feed(stream[start:end])
        cut = made.cut()
        assert cut.refusals == {}
        for decoded in (*cut.tables, *made.spill()):
            key = ("_key_changed", "_old_id") if decoded.schema.key else ()
            found[decoded.schema.oid] += rows([decoded], *COLUMNS, *META, *key)
    assert found == wanted
    assert (made.intake.pending_bytes, made.intake.in_transaction) == (0, False)

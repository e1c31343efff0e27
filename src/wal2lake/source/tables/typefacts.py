"""Catalog facts that the text of values depends on: labels of enums and attributes of composites, at any depth.

A stored row has the oid of a label, and its output function reads the text from the catalog. So ALTER TYPE changes the
text of rows without a row in the WAL, and a lake column stores the facts that it depends on.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from ...types import FIRST_USER_OID
from ..sessions.connect import Connection, explained, query

_DIGITS = 16


@dataclass(frozen=True)
class TypeFacts:
    """Facts of one type. Each label is a fact of its own, so that a new label changes none of the others."""

    relies: tuple[str, ...] = ()
    unaltered: bool = True
    """whether all of it is as it was created"""


def rows(conn: Connection, oids: Iterable[int]) -> list[tuple[int, int, bool, str, str]]:
    """Type, the part of it that a fact is about, whether that is a label, the fact, and the xid that wrote it."""
    own = sorted({oid for oid in oids if oid >= FIRST_USER_OID})
    if not own:
        return []
    with explained("reading", "the catalog"):
        return [tuple(row) for row in conn.execute(query("type_facts"), {"oids": own}).fetchall()]


def read(conn: Connection, oids: Iterable[int]) -> dict[int, TypeFacts]:
    """The facts of types by oid; a type that does not exist has none."""
    labels: defaultdict[int, list[str]] = defaultdict(list)
    attributes: defaultdict[tuple[int, int], list[str]] = defaultdict(list)
    writers: defaultdict[tuple[int, int], set[str]] = defaultdict(set)
    for root, part, label, fact, writer in rows(conn, oids):
        writers[root, part].add(writer)
        if label:
            labels[root].append(_short(f"{part} {fact}"))
        else:
            attributes[root, part].append(fact)
    altered = {root for (root, _), found in writers.items() if len(found) > 1}
    relies: defaultdict[int, list[str]] = defaultdict(list, labels)
    for (root, part), facts in attributes.items():
        relies[root].append(_short(f"{part} {facts}"))
    return {root: TypeFacts(tuple(sorted(found)), root not in altered) for root, found in relies.items()}


def _short(fact: str) -> str:
    return hashlib.sha256(fact.encode()).hexdigest()[:_DIGITS]

"""What is installed for a table, as SQL: its buffer, the function that fills it, and the triggers that call it.

Values are kept in columns of their own types, without type modifiers, so that nothing is rounded or refused while
somebody writes. Types that users made are kept as text: a buffer must not stop anybody from altering or dropping them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...quoting import identifier, literal
from ...schema import ReplicaIdentity, TableSchema
from ..sessions import session
from ..sessions.connect import query

SCHEMA = "wal2lake_changes"
FIRST_USER_OID = 16384
"""oids from here on are of objects that users have made"""
OPERATIONS = ("INSERT", "UPDATE", "DELETE", "TRUNCATE")
_REFERENCING = {
    "INSERT": "REFERENCING NEW TABLE AS wal2lake_new",
    "UPDATE": "REFERENCING OLD TABLE AS wal2lake_old NEW TABLE AS wal2lake_new",
    "DELETE": "REFERENCING OLD TABLE AS wal2lake_old",
    "TRUNCATE": "",
}
_PINNED = ("DateStyle", "IntervalStyle", "TimeZone", "extra_float_digits", "bytea_output", "lc_monetary")
_FILLS = re.compile(rf"INSERT INTO {SCHEMA}\.changes_(\d+)")


@dataclass(frozen=True)
class BufferColumn:
    """A column of a mirrored table, as it was when its buffer was made."""

    name: str
    type_oid: int
    typmod: int
    type_name: str
    """without the modifier"""
    output: str
    """the function that gives the type's text"""

    @property
    def as_text(self) -> bool:
        return self.type_oid >= FIRST_USER_OID

    @property
    def kept_as(self) -> str:
        return "text" if self.as_text else self.type_name

    def to_json(self) -> list[Any]:
        return [self.name, self.type_oid, self.typmod, self.type_name, self.output]

    def text(self, value: str) -> str:
        """PostgreSQL's text of a value that is kept in its own type: a cast to text is another one for some types."""
        return f"textin({self.output}({value}))"

    def kept(self, value: str) -> str:
        """What a buffer keeps of a value.

        The output function of a user's type is not called by name: without a privilege on its schema the writer of the
        table would fail.
        """
        return f"CASE num_nulls({value}) WHEN 0 THEN format('%s', {value}) END" if self.as_text else value


@dataclass(frozen=True)
class Buffer:
    """The rows that were captured of a table while its columns were these."""

    relid: int
    generation: int
    columns: tuple[BufferColumn, ...]
    layout: str
    retired: str | None = None
    """a transaction that was running, or had not begun, when the next generation took over; None: it is filled"""

    @property
    def name(self) -> str:
        return f"{SCHEMA}.changes_{self.relid}" + (f"_{self.generation}" if self.generation else "")

    @property
    def numbers(self) -> str:
        """The sequence of its identity column."""
        return f"{self.name}_id_seq"

    def create(self) -> str:
        columns = "".join(f", c{number} {column.kept_as}" for number, column in enumerate(self.columns))
        return (
            f"CREATE TABLE {self.name} (id bigint GENERATED ALWAYS AS IDENTITY (CACHE 1),"
            # What is one byte long comes last: before other columns it would take up to eight in each row.
            f' xid xid8 NOT NULL DEFAULT pg_current_xact_id(){columns}, op "char" NOT NULL)'
            " WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000);"
            # A publication of all tables has this one, too, and would refuse to empty it.
            f" ALTER TABLE {self.name} REPLICA IDENTITY FULL"
        )


def whole(schema: TableSchema) -> TableSchema:
    """The table as its buffer tells of it: rows are identified as a whole, whatever key there is."""
    known = schema.key or schema.catalog_key
    return replace(schema, key=(), key_index=0, identity=ReplicaIdentity.FULL, catalog_key=known)


def filled_by(source: str) -> int | None:
    """The mirrored table whose buffer a capture function fills."""
    found = _FILLS.search(source)
    return int(found[1]) if found is not None else None


@dataclass(frozen=True)
class Attribute:
    """A row of pg_attribute: a column that a table has, or had."""

    number: int
    name: str
    type_oid: int
    typmod: int
    dropped: bool


@dataclass(frozen=True)
class Installation:
    """What one table, or one partition of it, has of its own."""

    relid: int
    table: str
    """qualified and quoted"""
    attributes: Sequence[Attribute]
    """all, by number, also those that were dropped"""
    buffer: Buffer
    part: bool = False
    """whether it is a partition: emptying it does not empty the table"""

    @property
    def function(self) -> str:
        return f"{SCHEMA}.capture_{self.relid}"

    @property
    def create_function(self) -> str:
        columns = self.buffer.columns
        attributes = self.attributes
        present = [one for one in attributes if not one.dropped]
        listed = ["NULL" if one.dropped else literal(one.name) for one in attributes]
        settings = "SET search_path = pg_catalog, pg_temp"
        if any(column.as_text for column in columns):
            settings += "".join(f" SET {name} = {literal(session.SETTINGS[name])}" for name in _PINNED)
        text = query("trigger_function").decode()
        own = [(column, f"n.{identifier(column.name)}") for column in columns]
        values = "".join(f"{column.kept(name)}, " for column, name in own)
        return text.format(
            function=self.function,
            buffer=self.buffer.name,
            numbers=literal(self.buffer.numbers),
            settings=settings,
            truncated="'X'" if self.part else "'T'",
            detached=self._detached,
            oid=self.relid,
            highest=len(attributes),
            names=f"ARRAY[{', '.join(listed)}]",
            types=f"ARRAY[{', '.join(f'pg_typeof(n.{identifier(one.name)})' for one in present)}]::regtype[]",
            oids=f"ARRAY[{', '.join(str(one.type_oid) for one in present)}]::oid[]",
            all_names=f"ARRAY[{', '.join(literal(one.name) for one in attributes)}]::name[]",
            all_types=f"ARRAY[{', '.join(str(one.type_oid) for one in attributes)}]::oid[]",
            all_typmods=f"ARRAY[{', '.join(str(one.typmod) for one in attributes)}]::int[]",
            into="".join(f"c{number}, " for number in range(len(columns))),
            values=values,
        )

    @property
    def _detached(self) -> str:
        """The condition for a partition to be none of the buffer's table any more."""
        if not self.part:
            return "false"
        # Not pg_class.relispartition: it may be a partition of another table.
        return f"NOT EXISTS (SELECT FROM pg_partition_ancestors({self.relid}) s WHERE s.relid = {self.buffer.relid})"

    @property
    def source(self) -> str:
        """The body of its function, as pg_proc has it."""
        return self.create_function.split("$capture$")[1]

    @property
    def triggers(self) -> dict[str, str]:
        """The statement of each trigger, by its name."""
        made = {}
        for operation in OPERATIONS:
            what = f"{_REFERENCING[operation]} FOR EACH STATEMENT EXECUTE FUNCTION {self.function}()"
            name = f"wal2lake_{operation.lower()}_{hashlib.sha256(what.encode()).hexdigest()[:8]}"
            made[name] = f"CREATE TRIGGER {name} AFTER {operation} ON {self.table} {what}"
        return made

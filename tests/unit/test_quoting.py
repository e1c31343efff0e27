"""Names of any kind reach the shell, psql and the configuration file as they are."""

from __future__ import annotations

import shlex
import subprocess
import tomllib

import pytest

from remedies import inventory, steps
from wal2lake import errors
from wal2lake.quoting import dollar_quoted, identifier, literal, plain_literal, shell, toml, toml_key
from wal2lake.schema import TableId

AWKWARD = (
    "plain", "it's", 'say "hi"', "two words", "$HOME", "`id`", "a.b", "back\\slash", "\\'", "semi;colon", "#note", "{table}",
    "*", "é😀", "a\nb", "tab\there", "\x7f", "!",
)  # fmt: skip


@pytest.mark.parametrize("name", AWKWARD)
def test_a_shell_reads_one_word_that_is_the_name(name: str) -> None:
    quoted = shell(name)
    assert len(quoted.splitlines()) == 1
    read = subprocess.run(["bash", "-c", f"printf '%s|' {quoted}"], capture_output=True, check=True)
    assert read.stdout.decode() == f"{name}|"


@pytest.mark.parametrize("name", AWKWARD)
def test_toml_reads_the_name_as_a_key_and_as_a_value(name: str) -> None:
    text = f"[tables.{toml(name)}]\n{toml_key(name)} = {toml(name)}"
    assert len(text.splitlines()) == 2
    assert tomllib.loads(text) == {"tables": {name: {name: name}}}


def test_what_needs_no_quotes_as_a_key_has_none() -> None:
    assert [toml_key(name) for name in ("amount", "total-2", "a.b")] == ["amount", "total-2", "'a.b'"]


def test_sql_is_one_line_whatever_a_name_holds() -> None:
    assert identifier("public", 'a"b') == '"public"."a""b"'
    assert identifier("a\nb\\") == 'U&"a\\+00000ab\\\\"'
    assert literal("it's") == "'it''s'"
    assert dollar_quoted("a $$ b") == "$body1$ a $$ b $body1$"


@pytest.mark.parametrize("name", [name for name in AWKWARD if name.isprintable()])
def test_the_remedy_of_an_error_names_the_table_to_the_command_and_to_the_file(name: str) -> None:
    table = str(TableId("public", name))
    assert steps(errors.LakeTableGone(table=table).remedy) == [["tables", "resync", table]]
    remedy = errors.ValueRefused(table=table, column=name, key="id=1", what="NaN", carrier="string").remedy
    section, setting = remedy.removeprefix("set ").split(" in the configuration, then: ")[0].split("] types", 1)
    read = tomllib.loads(f"{section}]\ntypes{setting}")
    assert read == {"tables": {table: {"types": {name: "string"}}}}


def test_what_is_given_as_a_remedy_is_not_filled_in_again() -> None:
    table = 'public."{cause}"'
    error = errors.TableError(table=table, cause="no", remedy=f"wal2lake tables resync {shell(table)}")
    assert shlex.split(error.remedy)[-1] == table


def test_no_remedy_quotes_a_name_by_hand() -> None:
    by_hand = [
        f"{remedy.place}: {remedy.text}" for remedy in inventory() if "'…'" in remedy.text or '"…"' in remedy.text
    ]
    assert not by_hand, "use wal2lake.quoting: " + "; ".join(by_hand)


def test_a_plain_literal_keeps_every_character() -> None:
    assert plain_literal("it's \u00a0 a\\b") == "'it''s \u00a0 a\\b'"

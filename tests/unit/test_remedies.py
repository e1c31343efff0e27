"""Every remedy that names a command is carried out by a test."""

from __future__ import annotations

import pytest

from remedies import Remedy, fix_inventory, inventory, registered, steps

ONLY_SHOWS = (
    "see: wal2lake",
    "see the mirrored tables with: wal2lake tables list",
    "an example: wal2lake init",
    "run: wal2lake check",
)
"""such a command changes nothing: it shows what the remedy is about"""


def _commands() -> list[Remedy]:
    found = [remedy for remedy in inventory() if remedy.names_a_command]
    return [remedy for remedy in found if not any(words in remedy.text for words in ONLY_SHOWS)]


def test_every_remedy_that_names_a_command_is_carried_out_by_a_test() -> None:
    known = registered()
    missing = [f"{remedy.place}: {remedy}" for remedy in _commands() if not any(each in str(remedy) for each in known)]
    assert not missing, (
        "write a test that provokes the error, does what the remedy says (Mirrored.heed) and compares the tables, "
        "and mark it with @heals('words of the remedy'):\n" + "\n".join(missing)
    )


def test_what_tests_carry_out_is_in_the_code() -> None:
    texts = [str(remedy) for remedy in _commands()]
    stale = [words for words in registered() if not any(words in text for text in texts)]
    assert not stale, "no remedy has these words: " + "; ".join(stale)


def test_every_fix_of_check_is_carried_out_by_a_test() -> None:
    missing = fix_inventory() - registered("fixes")
    assert not missing, (
        "write a test that has check print it, pastes it into psql or runs it, and sees that check is content, "
        "and mark it with @fixes(…):\n" + "\n".join(sorted(missing))
    )
    assert not (stale := registered("fixes") - fix_inventory()), f"no fix of check reads so: {stale}"


@pytest.mark.parametrize(
    ("remedy", "expected"),
    [
        ("re-copy it with: wal2lake tables resync 'My \"S\".t'", [["tables", "resync", 'My "S".t']]),
        (
            'ALTER TABLE "a"."b" REPLICA IDENTITY FULL; then: wal2lake tables resync \'a.b\'',
            ['ALTER TABLE "a"."b" REPLICA IDENTITY FULL', ["tables", "resync", "a.b"]],
        ),
        ("stop it, or end it with: SELECT pg_terminate_backend(7)", ["SELECT pg_terminate_backend(7)"]),
        ("No action needed: it is retried", []),
    ],
)
def test_the_steps_of_a_remedy_are_found_in_its_text(remedy: str, expected: list[object]) -> None:
    assert steps(remedy) == expected

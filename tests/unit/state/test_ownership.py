"""Which installation may use a state store, and which may claim it."""

from __future__ import annotations

from pathlib import Path

import pytest

from wal2lake.errors import OtherInstallation
from wal2lake.installation import Installation
from wal2lake.state.ownership import Owner, claim, require_owner


def test_an_installation_uses_its_own_store_wherever_it_is(tmp_path: Path) -> None:
    require_owner(Owner("a", "elsewhere"), Installation(tmp_path / "_wal2lake", "a"), [])


def test_an_installation_without_an_id_uses_the_store_of_its_place_alone(tmp_path: Path) -> None:
    begun = Installation(tmp_path / "_wal2lake", None)
    require_owner(Owner("a", begun.place), begun, [])
    with pytest.raises(OtherInstallation, match="elsewhere"):
        require_owner(Owner("a", "elsewhere"), begun, [])


def test_an_installation_with_another_id_is_refused_in_the_same_place(tmp_path: Path) -> None:
    other = Installation(tmp_path / "_wal2lake", "b")
    with pytest.raises(OtherInstallation):
        require_owner(Owner("a", other.place), other, [])


@pytest.mark.parametrize("found", [None, Owner("a", "x"), Owner("b", "x"), Owner("a", "y")])
def test_a_store_is_claimed_by_the_same_id_or_in_the_same_place(found: Owner | None) -> None:
    assert claim(found, Owner("a", "x")) == Owner("a", "x")


def test_a_store_of_another_id_and_place_is_not_claimed() -> None:
    with pytest.raises(OtherInstallation, match="y"):
        claim(Owner("b", "y"), Owner("a", "x"))

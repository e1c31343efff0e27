import pytest

from wal2lake.source.streaming.refusals import names


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('skipped loading publication "wal2lake_g"', True),
        ("Laden der Publikation »wal2lake_g« übersprungen", True),
        ('skipped loading publication "wal2lake_g_append"', False),
        ('skipped loading publication "my_wal2lake_g"', False),
    ],
)
def test_a_publication_is_found_in_a_notice_of_any_language(text: str, named: bool) -> None:
    assert names(text, "wal2lake_g") is named

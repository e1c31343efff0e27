"""The file that `init` writes: it is read without a change, and each line of it means something."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from wal2lake.cli.template import config_file, options
from wal2lake.config import SECTIONS, Config, load_config


def test_the_file_is_read_and_equals_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / "wal2lake.toml"
    file.write_text(config_file())
    config = load_config(file)
    assert config.source.dsn.get_secret_value() == "postgresql://user:secret@localhost:5432/shop"
    defaults = Config.model_validate({"source": {"dsn": config.source.dsn}, "lake": {"path": str(tmp_path / "lake")}})
    assert config == defaults


def test_every_key_that_is_a_comment_can_be_uncommented() -> None:
    awake = re.sub(r"^# (\w+ = |\[)", r"\1", config_file(), flags=re.MULTILINE)
    document = tomllib.loads(awake)
    config = Config.model_validate(document)
    assert config.lake.properties == {"format-version": "2"}
    assert str(config.tables["public.orders"].types["amount"]) == "decimal(20,4)"
    written = {section: set(document[section]) for section in ("source", "lake", "spark", "state")}
    assert written == {section: set(SECTIONS[section].model_fields) for section in written}


def test_every_option_says_what_it_is_for() -> None:
    assert [o.key for section in SECTIONS for o in options(section) if not o.description.endswith(".")] == []

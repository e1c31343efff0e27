"""The bars of the initial copy."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.progress import Task

from wal2lake.cli.progress import ConsoleProgress, copy_progress
from wal2lake.observe.progress import Silent


@pytest.fixture
def progress() -> ConsoleProgress:
    return ConsoleProgress(Console(file=io.StringIO(), force_terminal=True, width=100))


def tasks(progress: ConsoleProgress) -> list[Task]:
    return progress.bars.tasks if progress.bars is not None else []


def test_a_copy_has_a_bar_while_it_runs(progress: ConsoleProgress) -> None:
    progress.copy_started("public.a", 100)
    progress.copy_started("public.b", 0)
    progress.copy_advanced("public.a", 40)
    first, second = tasks(progress)
    assert (first.description, first.completed, first.total) == ("public.a", 40, 100)
    assert second.total is None
    progress.copy_finished("public.a", 100)
    assert [task.description for task in tasks(progress)] == ["public.b"]
    progress.stop()


def test_nothing_is_drawn_while_nothing_is_copied(progress: ConsoleProgress) -> None:
    for _ in range(2):
        progress.copy_started("public.a", 1)
        assert [task.description for task in tasks(progress)] == ["public.a"]
        progress.copy_finished("public.a", 1)
        assert progress.bars is None


def test_a_copy_that_failed_leaves_no_bar(progress: ConsoleProgress) -> None:
    progress.copy_started("public.a", 1)
    progress.copy_failed("public.a")
    assert progress.bars is None


def test_a_copy_beyond_the_estimate_does_not_look_finished(progress: ConsoleProgress) -> None:
    progress.copy_started("public.a", 100)
    progress.copy_advanced("public.a", 101)
    assert not tasks(progress)[0].finished
    progress.stop()


def test_a_copy_that_starts_over_has_one_bar(progress: ConsoleProgress) -> None:
    progress.copy_started("public.a", 100)
    progress.copy_advanced("public.a", 50)
    progress.copy_started("public.a", 100)
    assert [task.completed for task in tasks(progress)] == [0]
    progress.stop()


def test_what_was_never_started_is_no_error(progress: ConsoleProgress) -> None:
    progress.copy_advanced("public.a", 1)
    progress.copy_finished("public.a", 1)
    assert progress.bars is None


def test_in_a_pipe_there_are_no_bars() -> None:
    stream = io.StringIO()
    with copy_progress(Console(file=stream)) as progress:
        progress.copy_started("public.a", 1)
        progress.copy_finished("public.a", 1)
    assert isinstance(progress, Silent)
    assert not stream.getvalue()


def test_on_a_terminal_a_bar_shows_rows_and_rate() -> None:
    stream = io.StringIO()
    with copy_progress(Console(file=stream, force_terminal=True, width=120)) as progress:
        progress.copy_started("public.a [b]", 2000)
        progress.copy_advanced("public.a [b]", 1234)
    assert "public.a [b]" in stream.getvalue()
    assert "1,234 rows" in stream.getvalue()

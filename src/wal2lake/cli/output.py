"""Output of commands, for people or for programs. Commands never print; they hand their result to an `Output`.

Results go to stdout. The JSON is a documented contract: keys may be added, none changes its meaning.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from ..config import Setting
    from ..observe import Change, GroupStatus, Status, TableStatus
    from ..preflight import Finding
    from ..reconcile import GroupSummary
    from ..state import HistoryEntry

_PIPE_WIDTH = 200


class Output(Protocol):
    def status(self, status: Status) -> None:
        """Positions and states of groups and tables."""

    def tables(self, tables: Sequence[TableStatus]) -> None:
        """The mirrored tables."""

    def findings(self, findings: Sequence[Finding]) -> None:
        """The findings of a check."""

    def groups(self, groups: Sequence[GroupSummary]) -> None:
        """The groups."""

    def history(self, entries: Sequence[HistoryEntry]) -> None:
        """The events of a table."""

    def settings(self, settings: Sequence[Setting]) -> None:
        """The settings, with their origin."""

    def change(self, change: Change) -> None:
        """One of a series of changes."""

    def done(self, message: str) -> None:
        """A message of success."""


def console(stderr: bool = False) -> Console:
    """A console that prints names unchanged: brackets and colons are no markup."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _PIPE_WIDTH
    return Console(stderr=stderr, markup=False, emoji=False, highlight=False, width=width)


class JsonOutput:
    """One JSON document per result; with `series`, on one line each."""

    def __init__(self, series: bool = False) -> None:
        self._indent = None if series else 2

    def status(self, status: Status) -> None:
        self._print(status.to_json())

    def tables(self, tables: Sequence[TableStatus]) -> None:
        from ..observe import Status

        self._print({"tables": Status(groups=(), tables=tuple(tables)).to_json()["tables"]})

    def findings(self, findings: Sequence[Finding]) -> None:
        self._print(
            {
                "ok": not any(finding.blocks for finding in findings),
                "findings": [finding.to_json() for finding in findings],
            }
        )

    def groups(self, groups: Sequence[GroupSummary]) -> None:
        self._print({"groups": [vars(group) for group in groups]})

    def history(self, entries: Sequence[HistoryEntry]) -> None:
        self._print(
            {
                "history": [
                    {
                        "table": str(entry.id), "group": entry.group, "at": entry.at.isoformat(), "who": entry.who,
                        "from": entry.before, "to": entry.after, "detail": entry.detail,
                    }
                    for entry in entries
                ]
            }
        )  # fmt: skip

    def settings(self, settings: Sequence[Setting]) -> None:
        self._print({"settings": [vars(setting) for setting in settings]})

    def change(self, change: Change) -> None:
        self._print(change.to_json())

    def done(self, message: str) -> None:
        self._print({"ok": True, "message": message})

    def _print(self, document: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps(document, indent=self._indent, ensure_ascii=False) + "\n")
        sys.stdout.flush()


class ConsoleOutput:
    """Tables and lines, coloured on a terminal, plain in a pipe."""

    def __init__(self, out: Console | None = None) -> None:
        self._out = out or console()

    def status(self, status: Status) -> None:
        self._out.print(status_view(status))

    def tables(self, tables: Sequence[TableStatus]) -> None:
        self._out.print(tables_view(tables))

    def findings(self, findings: Sequence[Finding]) -> None:
        for finding in findings:
            line = Text(f"{finding.level:<6} ", style=_LEVEL_STYLES[finding.level])
            line.append(f"{finding.object}: ", style="bold").append(finding.consequence, style="default")
            self._out.print(line, soft_wrap=True)
            if finding.fix:
                self._out.print(Text(f"       fix: {finding.fix}", style="default"), soft_wrap=True)
        blocking = sum(finding.blocks for finding in findings)
        self.done(f"{blocking} of these must be fixed before a run" if blocking else "nothing blocks a run")

    def groups(self, groups: Sequence[GroupSummary]) -> None:
        view = _table("group", "state", "from", "tables>", "patterns", "slot", "run by")
        for group in groups:
            patterns = ", ".join([*group.tables, *(f"not {each}" for each in group.exclude)])
            view.add_row(
                group.name, _state(group.state), group.origin, str(group.mirrored), patterns or "-",
                group.slot or "-", group.holder or "-",
            )  # fmt: skip
        self._out.print(view)
        for group in groups:
            if group.origin == "nowhere":
                self.done(f"group {group.name} is not configured and its slot holds WAL: drop it with: "
                          f"wal2lake groups drop {group.name}")  # fmt: skip

    def history(self, entries: Sequence[HistoryEntry]) -> None:
        for entry in entries:
            line = Text(f"{_moment(entry.at)} ", style="dim")
            if entry.after is not None:
                line.append(f"{entry.before} → {entry.after}", style=_STATE_STYLES.get(entry.after, "bold"))
            detail = entry.detail or ""
            line.append(f"{': ' if entry.after and detail else ''}{detail}", style="default")
            line.append(f"  [{entry.who}]", style="dim")
            self._out.print(line, soft_wrap=True)

    def settings(self, settings: Sequence[Setting]) -> None:
        view = _table("setting", "value", "from")
        for setting in settings:
            view.add_row(setting.key, json.dumps(setting.value, ensure_ascii=False), setting.origin)
        self._out.print(view)

    def change(self, change: Change) -> None:
        said = change.to_json()
        line = Text(f"{_moment(change.commit_ts)} {change.commit_lsn}/{change.seq} ", style="dim")
        line.append(change.event, style="bold")
        for values in filter(None, (said["old_key"], said["row"])):
            line.append(" " + json.dumps(values, ensure_ascii=False), style="default")
        if change.unchanged:
            line.append(f" unchanged: {', '.join(change.unchanged)}", style="dim")
        self._out.print(line, soft_wrap=True)

    def done(self, message: str) -> None:
        self._out.print(message, soft_wrap=True)


_LEVEL_STYLES = {"blocks": "bold red", "warns": "yellow", "notes": "dim"}
_STATE_STYLES = {"STREAMING": "green", "ERRORED": "red", "PAUSED": "yellow", "RUNNING": "green",
    "DROPPED": "yellow", "DISABLED": "yellow",
}  # fmt: skip


def status_view(status: Status) -> RenderableType:
    """Groups, tables, then errors."""
    parts: list[RenderableType] = [_groups_view(status.groups), tables_view(status.tables)]
    items: tuple[GroupStatus | TableStatus, ...] = (*status.groups, *status.tables)
    parts += [Text(about(each.name, each.warning), style="yellow") for each in status.groups if each.warning]
    for item in items:
        if item.error:
            parts.append(Text(about(item.name, item.error), style="red"))
            parts.append(Text(f"  try: {item.remedy or '-'}{_retry(item)}"))
    return Group(*parts)


def about(name: str, error: str) -> str:
    """An error that begins with the name of its object, once."""
    return error if error.startswith(f"{name}: ") else f"{name}: {error}"


def tables_view(tables: Sequence[TableStatus]) -> Table:
    # A terminal is narrow: the group is shown only if there are several.
    several = len({table.group for table in tables}) > 1
    group = ["group"] if several else []
    view = _table("table", *group, "state", "rows>", "changes>", "behind>", "position", "last commit (UTC)")
    for table in tables:
        view.add_row(
            table.name, *([table.group] if several else []), _state(table.state),
            _number(table.rows), _number(table.changes_applied), _seconds(table.lag_seconds),
            str(table.applied_lsn or "-"), _moment(table.last_commit_at),
        )  # fmt: skip
    return view


def _groups_view(groups: Sequence[GroupStatus]) -> Table:
    view = _table("group", "state", "capture", "slot", "behind>", "bytes behind>", "acknowledged", "WAL kept>")
    for group in groups:
        view.add_row(
            group.name, _state(group.state), group.capture, group.slot, _seconds(group.lag_seconds),
            _bytes(group.lag_bytes), str(group.acknowledged_lsn or "-"), _bytes(group.retained_wal_bytes),
        )  # fmt: skip
    return view


def _table(*headings: str) -> Table:
    view = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        view.add_column(heading.rstrip(">"), justify="right" if heading.endswith(">") else "left", overflow="fold")
    return view


def _state(state: str) -> Text:
    return Text(state, style=_STATE_STYLES.get(state.upper(), "default"))


def _retry(item: GroupStatus | TableStatus) -> str:
    retry_at = getattr(item, "retry_at", None)
    return f" (next try at {_moment(retry_at)} UTC)" if retry_at else ""


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.1f} s" if value < 120 else f"{value / 60:.0f} min"


def _bytes(value: int) -> str:
    size = float(value)
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} TB"


def _moment(value: datetime | None) -> str:
    return "-" if value is None else value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")

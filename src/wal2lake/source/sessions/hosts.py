"""Splits a connection string with several hosts into one attempt for each, by libpq's rules.

Needed for connections that we poll: libpq applies the timeout per host only in its blocking call.
"""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from typing import Any

_ENVIRONMENT = {"host": "PGHOST", "hostaddr": "PGHOSTADDR", "port": "PGPORT"}


def attempts(parameters: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The parameters for each host, in the order in which they are tried."""
    lists = {name: _list(parameters, name) for name in _ENVIRONMENT}
    count = max(len(lists["host"]), len(lists["hostaddr"]))
    if count <= 1:
        return [dict(parameters)]
    made = []
    for place in range(count):
        one = dict(parameters)
        for name, values in lists.items():
            # A single port applies to all hosts.
            value = values[place if len(values) == count else 0] if values else ""
            one.pop(name, None)
            if value:
                one[name] = value
        made.append(one)
    if str(parameters.get("load_balance_hosts") or os.environ.get("PGLOADBALANCEHOSTS")) == "random":
        random.shuffle(made)
    return made


def writable(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """With several hosts, require the one that accepts writes, unless target_session_attrs is set."""
    said = parameters.get("target_session_attrs") or os.environ.get("PGTARGETSESSIONATTRS")
    return {} if said or len(attempts(parameters)) == 1 else {"target_session_attrs": "primary"}


def _list(parameters: Mapping[str, Any], name: str) -> list[str]:
    text = str(parameters.get(name) or os.environ.get(_ENVIRONMENT[name]) or "")
    return text.split(",") if text else []

"""Changes that the log could not carry, as the errors that they are recorded as."""

from __future__ import annotations

from .. import errors
from ..change import Refusal
from ..errors import CopyNeeded, Wal2LakeError


def refused(refusal: Refusal) -> Wal2LakeError:
    """The error for a refusal in the change log."""
    if refusal.error == "OperationRefused":
        # In a change log that an older version has written.
        return CopyNeeded(table=refusal.fields["table"], cause="a change does not identify its row")
    kind = getattr(errors, refusal.error, None)
    if not (isinstance(kind, type) and issubclass(kind, Wal2LakeError)):
        kind = errors.TableError
    return kind(**refusal.fields)

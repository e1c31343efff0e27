"""The capture process: source → decode → change log → acknowledge.

Other packages use the names that are listed here, never the modules behind them.
"""

from .process import CaptureProcess
from .report import (
    CaptureHandle,
    CaptureReport,
    CaptureState,
    MakeCapture,
)

__all__ = [
    "CaptureHandle",
    "CaptureProcess",
    "CaptureReport",
    "CaptureState",
    "MakeCapture",
]

"""Parts for tests: clocks that do not wait, logs, files and object stores that fail on command."""

from holdfast.testing.clock import FakeClock, HurriedClock
from holdfast.testing.files import FaultyFiles, HangingFiles
from holdfast.testing.log import ScriptedLog
from holdfast.testing.objects import FaultyObjects, FaultyRanges, StoreFaults

__all__ = [
    "FakeClock",
    "FaultyFiles",
    "FaultyObjects",
    "FaultyRanges",
    "HangingFiles",
    "HurriedClock",
    "ScriptedLog",
    "StoreFaults",
]

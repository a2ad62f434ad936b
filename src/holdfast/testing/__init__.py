"""Parts for tests: a clock that stands still, logs and files that fail on command."""

from holdfast.testing.clock import FakeClock
from holdfast.testing.files import FaultyFiles, HangingFiles
from holdfast.testing.log import ScriptedLog

__all__ = ["FakeClock", "FaultyFiles", "HangingFiles", "ScriptedLog"]

"""Parts for tests: a clock that stands still, logs and files that fail on command."""

from holdfast.testing.clock import FakeClock
from holdfast.testing.files import FaultyFiles, HangingFiles
from holdfast.testing.hurried_clock import HurriedClock
from holdfast.testing.life_clock import LifeClock
from holdfast.testing.log import ClockWorker, ScriptedLog
from holdfast.testing.objects import FaultyObjects, FaultyRanges, StoreFaults
from holdfast.testing.sim_files import KilledError, SimFiles
from holdfast.testing.sim_worker import SimWorker, WorkerKilledError

__all__ = [
    "ClockWorker",
    "FakeClock",
    "FaultyFiles",
    "FaultyObjects",
    "FaultyRanges",
    "HangingFiles",
    "HurriedClock",
    "KilledError",
    "LifeClock",
    "ScriptedLog",
    "SimFiles",
    "SimWorker",
    "StoreFaults",
    "WorkerKilledError",
]

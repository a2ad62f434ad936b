"""The steady clock: it goes on, whatever the machine's time does."""

import time

from holdfast.clock import SteadyClock, SystemClock


def test_later_changes_of_the_machines_time_do_not_move_it(monkeypatch):
    now_s = [5.0]
    monkeypatch.setattr(SteadyClock, "monotonic_s", staticmethod(lambda: now_s[0]))
    monkeypatch.setattr(time, "time_ns", lambda: 1_000_000_000_000)
    clock = SteadyClock()
    assert clock.now_ms() == 1_000_000
    monkeypatch.setattr(time, "time_ns", lambda: 9_000_000_000_000)
    assert SystemClock().now_ms() == 9_000_000
    now_s[0] += 2.5
    assert clock.now_ms() == 1_002_500

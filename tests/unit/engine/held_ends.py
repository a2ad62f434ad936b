"""Looking up boundaries in packs takes until the test says so."""

from holdfast.errors import StoreError


class HeldEnds:
    """Takes the place of `message_ends` of a driver's cold reader."""

    def __init__(self, driver):
        self._driver = driver
        self._look_up = driver.cold.message_ends
        self._held = []
        driver.cold.message_ends = lambda *asked: self._held.append(asked)

    def release(self, failure=None):
        """Have everything looked up by now, or let it fail; what is asked for then waits again."""
        assert self._held
        held, self._held = self._held, []
        for *asked, done in held:
            if failure is None:
                self._look_up(*asked, done)
            else:
                done(failure)
        self._driver.clock.run()

    def release_all(self, swept=0):
        """Until nothing more is asked for; what is before `swept` is not in packs any more."""
        while self._held:
            (_, start, _, _), *_ = self._held
            self.release(StoreError("swept") if start < swept else None)

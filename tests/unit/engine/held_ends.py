"""Looking up boundaries in packs takes until the test says so."""

from holdfast.errors import StoreError
from holdfast.storage.pending import Pending


class HeldEnds:
    """Takes the place of `message_ends` of a driver's cold reader."""

    def __init__(self, driver):
        self._driver = driver
        self._look_up = driver.cold.message_ends
        self._held = []
        driver.cold.message_ends = self._hold

    async def _hold(self, stream, start, end):
        released = Pending()
        self._held.append((start, released))
        await released
        return await self._look_up(stream, start, end)

    def release(self, failure=None):
        """Have everything looked up by now, or let it fail; what is asked for then waits again."""
        assert self._held
        held, self._held = self._held, []
        for _, released in held:
            released.set(failure)
        self._driver.clock.run()

    def release_all(self, swept=0):
        """Until nothing more is asked for; what is before `swept` is not in packs any more."""
        while self._held:
            (start, _), *_ = self._held
            self.release(StoreError("swept") if start < swept else None)


def failing(error):
    """A function like `message_ends` that raises."""

    async def fail(*_):
        raise error

    return fail

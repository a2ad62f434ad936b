"""`holdfast top` without its command line: `python top_script.py URL '{"once": true}'`."""

import asyncio
import json
import sys

from holdfast.cli.top import run_top
from holdfast.client import NO_RETRY, Client, Timeouts
from holdfast.clock import SystemClock
from holdfast.errors import HoldfastError, SettingsError


class BreakingClock(SystemClock):
    """Works so many times."""

    def __init__(self, times):
        super().__init__()
        self._left = times

    def now_ms(self):
        if not self._left:
            raise RuntimeError("the clock broke")
        self._left -= 1
        return super().now_ms()


async def top(url, options):
    breaks_after = options.pop("breaks_after", None)
    clock = SystemClock() if breaks_after is None else BreakingClock(breaks_after)
    async with Client(url, retry=NO_RETRY, timeouts=Timeouts(request_s=15)) as client:
        return await run_top(client, clock=clock, **options)


def main():
    options = {"interval_s": 0.2, "once": False, "as_json": False, "count": None}
    options |= json.loads(sys.argv[2])
    try:
        return asyncio.run(top(sys.argv[1], options))
    except HoldfastError as error:
        print("holdfast:", error.message, file=sys.stderr)
        return 2 if isinstance(error, SettingsError) else 1


if __name__ == "__main__":
    sys.exit(main())

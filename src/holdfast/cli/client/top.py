"""`holdfast top`: the flags of the live view, which is in `cli/top`."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Annotated

from cyclopts import Parameter

from holdfast.cli.client.connection import DEFAULT_SERVER, Server, connect
from holdfast.cli.client.output import Output
from holdfast.cli.top import run_top
from holdfast.clock import SystemClock


def top(
    *,
    interval: Annotated[float, Parameter(help="Seconds between two looks. (default 1)")] = 1.0,
    once: Annotated[bool, Parameter(negative="", help="Print one table and end.")] = False,
    count: Annotated[int | None, Parameter(help="End after so many looks.")] = None,
    server: Server = DEFAULT_SERVER,
) -> int:
    """Watch a server: streams, appends, readers, commit latency, hot and cold bytes.

    q ends it, p holds it. With --json one document a line, without end unless --once or --count.
    """
    output = Output(as_json=server.json, quiet=server.quiet)

    async def watch() -> int:
        # The view has its own way to show a server that is away.
        async with connect(replace(server, retries=0), output) as client:
            return await run_top(
                client,
                interval_s=interval,
                once=once,
                as_json=server.json,
                count=count,
                clock=SystemClock(),
            )

    return asyncio.run(watch())

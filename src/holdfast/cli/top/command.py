"""The command `holdfast top` and its flags."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Annotated

from cyclopts import Parameter

from holdfast.cli.client.connection import DEFAULT_SERVER, Server, connect
from holdfast.cli.client.output import Output
from holdfast.cli.top.run import run_top
from holdfast.clock import SystemClock


def top(
    *,
    interval: Annotated[float, Parameter(help="Seconds between updates. (default 1)")] = 1.0,
    once: Annotated[bool, Parameter(negative="", help="Print one table and exit.")] = False,
    count: Annotated[int | None, Parameter(help="Exit after this many updates.")] = None,
    server: Server = DEFAULT_SERVER,
) -> int:
    """Watch a server: streams, appends, readers, commit latency, hot and cold bytes.

    Press q to quit, p to pause. With --json it prints one document a line.
    """
    output = Output(as_json=server.json, quiet=server.quiet)

    async def watch() -> int:
        # The view itself shows an unreachable server.
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

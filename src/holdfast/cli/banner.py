"""What a server says on stdout when it is ready."""

import json
import os

from holdfast.settings import Settings

__all__ = ["banner", "banner_document"]


def banner_document(url: str, settings: Settings) -> str:
    """Return the same for programs, on one line."""
    in_memory = settings.server.durability == "memory"
    document = {
        "url": url,
        "pid": os.getpid(),
        "durability": settings.server.durability,
        "data_dir": None if in_memory else str(settings.server.data_dir.resolve()),
        "access_control": settings.access.is_on,
    }
    return json.dumps(document, ensure_ascii=False)


def banner(url: str, settings: Settings) -> str:
    """Return what a person who just started a server wants to know."""
    stream = f"{url}/v1/stream/demo/hello"
    if settings.server.durability == "memory":
        data = "*** IN MEMORY: NOTHING IS WRITTEN TO DISK, NOTHING SURVIVES A RESTART ***"
    else:
        data = f"{settings.server.data_dir.resolve()} (on disk before it is acknowledged)"
    header = ""
    if settings.access.is_on:
        header = "-H 'Authorization: Bearer '\"$TOKEN\" "
    return f"""\
Holdfast is listening on {url}
data: {data}

Try it:
  curl -i -X PUT {header}-H 'Content-Type: text/plain' {stream}
  curl -i -X POST {header}-H 'Content-Type: text/plain' -d 'hello, world' {stream}
  curl {header}'{stream}?offset=-1'
  curl -N {header}'{stream}?offset=-1&live=sse'
"""

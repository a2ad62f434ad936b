"""What a server says on stdout when it is ready."""

from holdfast.settings import Settings

__all__ = ["banner"]


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

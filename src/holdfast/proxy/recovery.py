"""After a restart: responses that were under way when the server ended get an Error frame."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from holdfast.errors import HoldfastError, UpstreamError
from holdfast.failpoints import failpoint
from holdfast.proxy.desk import DOCUMENTS, decode_place

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.engine.shard import Shard
    from holdfast.proxy.desk import Desk
    from holdfast.proxy.recording import Place

_log = logging.getLogger(__name__)


def end_open_responses(shard: Shard, desk_of: Callable[[str], Desk]) -> int:
    """End what an earlier server left open; how many responses that were."""
    stale: dict[str, bytes | None] = {}
    ended = 0
    for key, value in list(shard.documents.items(DOCUMENTS)):
        place = decode_place(value)
        number = _open_in(shard, place)
        if number is None:
            stale[key] = None
            continue
        desk = desk_of(place.name.partition("/")[2])
        response = desk.take_up(place._replace(number=number))
        response.fail(UpstreamError("The server ended before the upstream's response did."))
        desk.watch()
        ended += 1
        failpoint("proxy.recovering")
    if stale:
        # If that is not written they are stale the next time as well.
        with suppress(HoldfastError):
            shard.documents.commit(stale, lambda _context, _outcome: None, None)
    if ended:
        _log.warning("%d responses of upstreams were cut off by the end of the server", ended)
    return ended


def _open_in(shard: Shard, place: Place) -> int | None:
    """The number of the stream in which the response has begun and not ended; None if in none."""
    stream = shard.state.find(place.name)
    if stream is None or stream.gone or stream.closed:
        return None
    if place.number and stream.number != place.number:
        return None
    state = (stream.producers or {}).get(place.producer_id)
    return stream.number if state is not None and state.epoch == place.epoch else None

"""What is known to be missing of a stretch of the log: streams that are gone, or were trimmed.

A scan gives what there is now. Whoever reads a bucket stretch by stretch may have to know that
something was appended and never seen. The journal tells of appends and deletions, as far as it goes
back; the catalog tells of streams that were trimmed. What they name is lost for sure; there may be
more.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from holdfast.format.records import INDEX_BITS, Kind
from holdfast.http.scan_request import TURN_ENTRIES
from holdfast.storage.catalog_scan import Scanned

if TYPE_CHECKING:
    from holdfast.engine.journal import JournalBatch
    from holdfast.engine.state import State
    from holdfast.format.rows import StreamRow
    from holdfast.http.scan_request import ScanRequest
    from holdfast.storage.catalog import Catalog
    from holdfast.storage.catalog_scan import ScanRange


class Traces(NamedTuple):
    """What the journal has of a stretch of the log."""

    # Where the first bytes start that a stream gained in it, by the stream's number.
    gained: dict[int, int]
    # Names of streams that ended since it began, by number.
    ended: dict[int, str]


async def find_traces(state: State, asked: ScanRequest) -> Traces:
    """Go through the journal; nothing for a scan from the start, which cannot miss anything."""
    traces = Traces({}, {})
    if not asked.after:
        return traces
    journal = state.journal
    examined = 0
    for batch in list(journal.after(max(asked.after, journal.earliest))):
        _follow(batch, traces, counts=batch.position <= asked.until)
        examined += len(batch.streams)
        if examined >= TURN_ENTRIES:
            examined = 0
            await asyncio.sleep(0)
    return traces


def _follow(batch: JournalBatch, traces: Traces, *, counts: bool) -> None:
    gained, ended = traces
    if batch.rare:
        for change in batch.changes():
            if change.kind in {Kind.DELETE, Kind.EXPIRE}:
                ended[change.stream] = change.name
            elif counts and change.length and change.stream not in gained:
                gained[change.stream] = change.offset
    elif counts:
        for number, end, length in zip(batch.streams, batch.ends, batch.lengths, strict=True):
            if length and number not in gained:
                gained[number] = end - length


def lost_in_memory(state: State, asked: ScanRequest, traces: Traces) -> set[str]:
    """Ids of streams that gained something and ended, or were trimmed, as far as memory knows."""
    gained, ended = traces
    found = {
        name[asked.skip :]
        for number, name in ended.items()
        if number in gained and asked.covers(name)
    }
    by_number = state.by_number
    for number, offset in gained.items():
        stream = by_number.get(number)
        if stream is not None and offset < stream.earliest and asked.covers(stream.meta.name):
            found.add(stream.meta.name[asked.skip :])
    return found


def is_lost(each: ScanRange, asked: ScanRequest, traces: Traces) -> bool:
    """Whether something of an extent was appended in the stretch, and is gone now."""
    starts_within = each.first_position > asked.after
    is_within = starts_within or each.last_position <= asked.until
    if each.gone or each.stream in traces.ended:
        return is_within
    return starts_within and each.start < each.earliest


def lost_in_packs(catalog: Catalog, asked: ScanRequest, traces: Traces) -> set[str]:
    """Ids of trimmed streams that left no extent in the stretch; for a thread."""
    scan = catalog.scanning(Scanned(asked.prefix, asked.after, asked.until))
    found = {
        row.meta.name[asked.skip :]
        for row in scan.trimmed_of(list(traces.gained))
        if traces.gained[row.number] < row.earliest
    }
    created = {
        row.meta.name[asked.skip :]
        for row in scan.trimmed_since((asked.after + 1) << INDEX_BITS)
        if row.earliest > _begin(row)
    }
    # Asked last: what the rows tell of must have happened by the end of the stretch.
    return found | created if scan.flushed() <= asked.until else found


def _begin(row: StreamRow) -> int:
    """Where a stream's own bytes began."""
    return 0 if row.meta.fork is None else row.meta.fork.offset

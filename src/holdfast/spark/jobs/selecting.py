"""Which streams of a bucket a job is about, as its options say."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.spark.options import Options
from holdfast.spark.reading.selection import Selection, parse_selection


def selected(streams: Sequence[str], pattern: str) -> Selection:
    """The streams with these ids, those whose ids a pattern matches, or all."""
    given = {"streams": ",".join(streams), "streamPattern": pattern}
    found = parse_selection(Options(given, ["streams", "streamPattern"]))
    # An id may have a comma in it.
    return Selection(frozenset(streams), "") if streams else found

"""The storage process with more streams changing between flushes than fit into its memory."""

import asyncio

import pytest

from tests.storage.many_streams import ManyStreams

MIB = 1 << 20


@pytest.mark.slow
def test_memory_and_extents_stay_bounded(tmp_path):
    """For a million streams: `python -m tests.storage.many_streams`."""
    report = asyncio.run(ManyStreams(tmp_path, 120_000).run(rounds=5))
    assert report.merges >= 1
    assert report.wrong_streams == 0
    assert max(report.extents_per_tier.values()) <= 16
    assert report.peak_bytes <= 400 * MIB

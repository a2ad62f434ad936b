"""Streams that are in packs and, with the same appends, in memory."""

import pytest
from hypothesis import strategies as st

from holdfast.engine.stream import Stream
from holdfast.format import pack_builder
from holdfast.format.records import StreamMeta
from holdfast.format.rows import BucketRow
from tests.unit.storage.histories import body_form
from tests.unit.storage.rig import BINARY, JSON, TEXT

MEDIA = (BINARY, TEXT, JSON, "text/event-stream")
CHARACTERS = ["a", "é", "€", "😀", "\n"]

appends = st.lists(
    st.tuples(
        st.lists(
            st.text(st.sampled_from(CHARACTERS), min_size=1, max_size=12), min_size=1, max_size=4
        ),
        st.sampled_from([False, False, True]),  # whether a flush follows
    ),
    min_size=1,
    max_size=10,
)


def stored_form(media, messages):
    if media == JSON:
        return b"".join(body_form(each.encode()) + b"\x1e" for each in messages)
    return "".join(messages).encode()


def in_memory(media, bodies):
    """A stream with these appends, none of which has left memory."""
    stream = Stream(1, StreamMeta("b/s", media), 0, BucketRow(0))
    for body in bodies:
        stream.tail += len(body)
        stream.chunks.append(body)
        stream.ends.append(stream.tail)
    return stream


def flushed(rig, media, script, extent_bytes=1 << 20):
    """The same appends in packs and in memory: the stream's number, and the stream in memory."""
    bodies = [stored_form(media, messages) for messages, _ in script]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pack_builder, "EXTENT_BYTES_MAX", extent_bytes)
        number = rig.log.create(f"b/{rig.log.position}", content_type=media)
        for body, (_, flush_follows) in zip(bodies, script, strict=True):
            rig.log.append(number, body)
            if flush_follows:
                rig.flush()
        rig.flush()
    return number, in_memory(media, bodies)


def boundaries(stream):
    """Where a read of this stream may start."""
    data = b"".join(stream.chunks)
    if stream.media != JSON:
        return range(len(data))
    return [at for at in range(len(data)) if not at or data[at - 1] == 0x1E]

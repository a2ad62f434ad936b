"""Long responses piece by piece: SSE readers that share windows, and bodies of catch-up reads."""

import json
from itertools import chain
from operator import sub

import pytest

from holdfast.http.stored_body import BODY_PIECE_BYTES
from holdfast.http.turns import PIECE_BYTES
from holdfast.http.windows import EVENT_BYTES_MAX, Windows, window_bytes
from holdfast.objects.store import PostedRanges
from holdfast.protocol.sse import SseParser
from holdfast.storage.cold import ColdReader
from holdfast.testing import FakeClock
from tests.unit.engine.driver import JSON, NAME, TEXT, Driver
from tests.unit.engine.tiered import Tiered
from tests.unit.http.apps import Served
from tests.unit.http.test_turns import BusyClock

PATH = f"/{NAME}"
BINARY = "application/octet-stream"
LINES = b"".join(b"line %d\r\n" % number for number in range(800))
APPENDS = 40


def serve(media=TEXT, body=LINES, count=APPENDS, clock=None, engine=None):
    served = Served(engine or Driver(clock=clock or FakeClock()))
    served.engine.create_bucket(NAME.partition("/")[0])
    served.engine.create(NAME, media)
    for _ in range(count):
        served.engine.append(body, NAME, media)
    served.engine.commit()
    return served


def follow(served, offset="-1", **parameters):
    query = "".join(f"&{name}={value}" for name, value in parameters.items())
    return served.ask("GET", f"{PATH}?live=sse&offset={offset}{query}")


def read_events(slot):
    """The data of all events together, and where they ended."""
    events = SseParser().feed(slot.body)
    data = b"".join(event.data for event in events if event.kind == "data")
    return data, int(json.loads(events[-1].data)["streamNextOffset"])


def data_pieces(slot):
    """The pieces as the slot got them, without control events."""
    return [piece for piece in slot.pieces if len(piece) > PIECE_BYTES // 4]


class TestEvents:
    def test_a_window_is_encoded_once_for_all_readers(self):
        served = serve()
        first, second = follow(served), follow(served)
        served.clock.run()
        late = follow(served)
        served.clock.run()
        assert read_events(first) == (
            LINES.replace(b"\r\n", b"\n") * APPENDS,
            APPENDS * len(LINES),
        )
        assert first.body == second.body == late.body
        pieces = data_pieces(first)
        assert len(pieces) > 4
        # The last one reached the tail, and is not a window.
        for other in (second, late):
            shared = zip(pieces[:-1], data_pieces(other)[:-1], strict=True)
            assert all(one is another for one, another in shared)

    def test_readers_from_different_offsets_come_together(self):
        served = serve(body=b"x" * 1000, count=600)
        first, second = follow(served), follow(served, f"{7000:020d}")
        served.clock.run()
        tails = {id(piece) for piece in data_pieces(first)[1:-1]}
        assert len(tails) > 5
        assert tails <= {id(piece) for piece in data_pieces(second)}

    def test_some_windows_in_each_round(self):
        served = serve(clock=BusyClock())
        slots = [follow(served) for _ in range(20)]
        sent = [0]

        def look():
            sent.append(sum(len(slot.pieces) for slot in slots))
            if len(sent) < 200:
                served.clock.call_soon(look)

        served.clock.call_soon(look)
        served.clock.run()
        assert all(read_events(slot)[1] == APPENDS * len(LINES) for slot in slots)
        # Three events and their control events.
        assert max(map(sub, sent[1:], sent)) <= 6

    @pytest.mark.parametrize("media", [TEXT, BINARY])
    def test_paused_reader_holds_one_window(self, media):
        served = serve(media)
        slot = follow(served)
        slot.paused = True
        served.clock.run()
        assert slot.pieces == []
        write = slot.write

        def take_one(data, more=b""):
            write(data, more)
            slot.paused = True

        slot.write = take_one
        for count in range(1, 4):
            slot.resume()
            served.clock.run()
            assert len(data_pieces(slot)) == count
            assert max(map(len, slot.pieces)) <= 2 * PIECE_BYTES

    def test_readers_of_many_streams_do_not_all_hold_a_window(self):
        served = serve(count=0, clock=BusyClock())
        slots = []
        for number in range(50):
            served.engine.create(f"{NAME}-{number}", BINARY, body=bytes(100_000))
        served.engine.commit()
        for number in range(50):
            slots.append(served.ask("GET", f"{PATH}-{number}?live=sse&offset=-1"))
        held = []

        def look():
            held.append(sum(reader._window is not None for reader in served.shard.live._clients))
            if len(held) < 200:
                served.clock.call_soon(look)

        served.clock.call_soon(look)
        served.clock.run()
        assert all(b'"upToDate":true' in slot.body for slot in slots)
        assert max(held) <= 3

    def test_slow_reader_keeps_its_stream_alive(self):
        served = serve(count=0)
        served.engine.create(f"{NAME}-ttl", BINARY, body=bytes(1_000_000), ttl_s=20)
        served.engine.commit()
        slot = served.ask("GET", f"{PATH}-ttl?live=sse&offset=-1")
        write = slot.write

        def take_one(data, more=b""):
            write(data, more)
            slot.paused = True

        slot.write = take_one
        for _ in range(17):
            slot.resume()
            served.clock.advance(3)
            served.engine.commit()
        assert b'"upToDate":true' in slot.body

    def test_events_of_short_lines_are_short_as_well(self):
        served = serve(body=b"\n" * 1000, count=200)
        slot = follow(served)
        served.clock.run()
        assert read_events(slot) == (b"\n" * 200_000, 200_000)
        assert max(map(len, slot.pieces)) <= EVENT_BYTES_MAX + 1000

    @pytest.mark.parametrize("size", [1, 4, 5, 6, 7])
    def test_windows_cut_neither_characters_nor_line_ends(self, size):
        text = "a\r\n\N{EURO SIGN}\r\n\N{GRINNING FACE}\r\n" * 20
        served = serve(body=text.encode(), count=1)
        slot = follow(served, max_bytes=size)
        served.clock.run()
        assert read_events(slot)[0].decode() == text.replace("\r\n", "\n")

    def test_lengths_are_those_of_the_messages(self):
        served = serve(body=b"x" * 3000, count=100)
        slot = follow(served, lengths="true")
        served.clock.run()
        events = SseParser().feed(slot.body)
        lengths = [json.loads(event.data)["streamMessageLengths"] for event in events[1::2]]
        assert list(chain(*lengths)) == [3000] * 100
        assert len(lengths) > 3

    def test_what_a_snapshot_replaced_is_not_sent_again(self):
        served = serve(body=b"x" * 1000, count=200)
        follow(served)
        served.clock.run()
        slot = follow(served, f"{65_000:020d}")
        slot.paused = True
        served.engine.publish(190_000, NAME)
        served.engine.commit()
        slot.resume()
        served.clock.run()
        assert (slot.status, slot.code) == (410, "offset_gone")

    def test_few_bytes_are_kept(self):
        served = serve(body=b"x" * 1000, count=600)
        windows = served.app.windows = Windows(served.shard.reader, bytes_max=200_000)
        slot = follow(served)
        served.clock.run()
        assert read_events(slot) == (b"x" * 600_000, 600_000)
        assert 0 < windows._kept_bytes <= 200_000


def test_windows_end_at_the_same_places_wherever_they_start():
    for start in range(0, 5 * PIECE_BYTES, 1009):
        size = window_bytes(start, 1 << 20)
        assert PIECE_BYTES // 2 < size <= PIECE_BYTES * 3 // 2
        assert (start + size) % PIECE_BYTES == 0
    assert window_bytes(5, 100) == 100


class TestBodies:
    @pytest.mark.parametrize(
        ("media", "body"),
        [
            (TEXT, LINES),
            (BINARY, bytes(range(256)) * 40),
            (JSON, json.dumps([{"n": n} for n in range(900)]).encode()),
            (JSON, json.dumps("x" * 90_000).encode()),
            (TEXT, "\N{GRINNING FACE}".encode() * 50_000),
        ],
    )
    def test_pieces_make_the_whole_body(self, media, body):
        served = serve(media, body, 30)
        slot = served.ask("GET", PATH)
        served.clock.run()
        assert slot.ended
        assert len(slot.pieces) > 1
        assert len(slot.body) == slot.length
        end = int(slot.fields["stream-next-offset"])
        assert end == served.shard.find(NAME).tail or end > 900_000
        if media == JSON:
            parsed = json.loads(body)
            messages = parsed if isinstance(parsed, list) else [parsed]
            assert slot.json == (messages * 30)[: len(slot.json)]
        else:
            assert slot.body == (body * 30)[:end]

    def test_a_client_that_does_not_read_holds_one_piece(self):
        served = serve(BINARY, bytes(10_000), 90)
        slot = served.ask("GET", PATH, takes_all=False)
        served.clock.run()
        assert len(slot.pieces) == 1
        assert len(slot.body) <= BODY_PIECE_BYTES
        slot.takes_all = True
        slot.resume()
        served.clock.run()
        assert slot.body == bytes(900_000)

    def test_a_client_that_reads_between_turns_gets_each_piece_once(self, tmp_path):
        engine = Tiered(tmp_path)
        # No block is kept, so that every piece is waited for.
        ranges = PostedRanges(engine.store, engine.clock.call_soon)
        engine.shard.reader.cold = ColdReader(engine.catalog, ranges, 0)
        served = serve(BINARY, count=0, engine=engine)
        bodies = [bytes([number]) * 10_000 for number in range(90)]
        for body in bodies:
            engine.append(body, NAME, BINARY)
        engine.flush()
        slot = served.ask("GET", PATH)
        write = slot.write

        def take_at_once(data, more=b""):
            write(data, more)
            slot.paused = True
            # In the next round, before the turn that follows.
            served.clock.call_soon(slot.resume)

        slot.write = take_at_once
        served.clock.run()
        assert slot.ended
        assert slot.body == b"".join(bodies)
        assert len(served.app.turns) == 0
        engine.close()

    def test_what_goes_meanwhile_breaks_the_body_off(self):
        served = serve(BINARY, bytes(10_000), 90)
        slot = served.ask("GET", PATH, takes_all=False)
        served.engine.delete(NAME)
        served.engine.commit()
        slot.resume()
        served.clock.run()
        assert slot.aborted
        assert len(slot.body) < slot.length

    def test_a_client_that_leaves_gets_no_more(self):
        served = serve(BINARY, bytes(10_000), 90)
        slot = served.ask("GET", PATH, takes_all=False)
        slot.on_gone()
        slot.paused = False
        served.clock.run()
        assert len(slot.pieces) == 1
        assert not slot.ended

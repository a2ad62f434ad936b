"""Events of the server, through the client: what was stored comes out, however it is cut."""

import re
from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.client.messages import Batch
from holdfast.client.reading import LiveEvents, is_exact
from holdfast.errors import BadAnswerError
from holdfast.protocol.content import store_form
from holdfast.protocol.sse import HEARTBEAT, control_event, data_event, with_lengths
from tests.unit.protocol.splits import cut_at, random_cuts, single_bytes, two_pieces

TEXT = "text/plain"
JSON = "application/json"
BINARY = "application/octet-stream"
BASE64 = {"stream-sse-data-encoding": "base64"}
TELLS = {"stream-message-lengths": "events"}


def offset_of(position):
    return f"{position:020d}"


def control(position, *, up_to_date=False, closed=False):
    return control_event(b"%020d" % position, 9, up_to_date=up_to_date, closed=closed)


def batches_of(pieces, content_type, headers=None, offset="-1"):
    events = LiveEvents(headers or {}, content_type, offset)
    return [batch for piece in pieces for batch in events.feed(piece)]


def as_text_arrives(payload):
    return re.sub(rb"\r\n|\r", b"\n", payload)


class TestRoundTrip:
    PAYLOADS = (b"plain", b"a\rb\r\nc\n", b" spaces\n  kept", b"\r", b"event: control\ndata:{}\n\n")

    def stream_of(self, media):
        position, stream = 0, b""
        for payload in self.PAYLOADS:
            position += len(payload)
            stream += data_event(payload, media) + control(position) + HEARTBEAT
        return stream + control(position, up_to_date=True, closed=True)

    @pytest.mark.spec("base 5.8-5")
    @pytest.mark.parametrize(
        ("media", "headers", "arrives"),
        [(TEXT, {}, as_text_arrives), (BINARY, BASE64, bytes)],
        ids=["text", "base64"],
    )
    def test_at_every_byte(self, media, headers, arrives):
        stream = self.stream_of(media)
        for pieces in [*two_pieces(stream), single_bytes(stream)]:
            batches = batches_of(pieces, media, headers)
            assert [batch.data for batch in batches] == [*map(arrives, self.PAYLOADS), b""]
            assert [batch.closed for batch in batches] == [False] * 5 + [True]
            position = 0
            for batch, payload in zip(batches, self.PAYLOADS, strict=False):
                assert batch.offset == (offset_of(position) if position else "-1")
                position += len(payload)
                assert batch.next_offset == offset_of(position)
                assert (batch.cursor, batch.content_type) == ("9", media)

    def test_json_at_every_byte(self):
        stored = store_form(b'["a\\r\\n", {"b": [1, 2]},\r\n [], "\xc3\xa4"]')
        stream = data_event(stored, JSON) + control(len(stored), up_to_date=True)
        for pieces in [*two_pieces(stream), single_bytes(stream)]:
            (batch,) = batches_of(pieces, JSON)
            assert batch.json == ["a\r\n", {"b": [1, 2]}, [], "ä"]
            assert batch.up_to_date
            assert not batch.closed

    @given(st.lists(st.binary(min_size=1, max_size=30), max_size=5), random_cuts)
    def test_any_bytes_in_any_pieces(self, payloads, cuts):
        stream = b"".join(data_event(each, BINARY) + control(1) for each in payloads)
        batches = batches_of(cut_at(stream, cuts), BINARY, BASE64)
        assert [batch.data for batch in batches] == payloads


class TestEvents:
    def test_data_is_held_until_its_control_event_has_come(self):
        events = LiveEvents({}, TEXT, "-1")
        assert events.feed(data_event(b"one", TEXT)) == []
        (batch,) = events.feed(control(3))
        assert batch.data == b"one"

    def test_several_data_events_before_one_control_event_are_one_batch(self):
        (batch,) = batches_of(
            [data_event(b"a\n", TEXT) + data_event(b"b", TEXT) + control(3)], TEXT
        )
        assert batch.data == b"a\nb"

    def test_several_arrays_before_one_control_event_are_one_array(self):
        arrays = b"data:[1, 2]\n\ndata: [ ]\n\ndata:[[3]]\n\n".replace(
            b"data", b"event: data\ndata"
        )
        (batch,) = batches_of([arrays + control(3)], JSON)
        assert batch.json == [1, 2, [3]]

    def test_data_of_one_batch_is_not_in_the_next(self):
        stream = data_event(b"one", TEXT) + control(3) + control(3, up_to_date=True)
        assert [batch.data for batch in batches_of([stream], TEXT)] == [b"one", b""]

    def test_starts_where_the_answer_says(self):
        headers = {"stream-start-offset": offset_of(7)}
        (batch,) = batches_of([control(9)], TEXT, headers, "now")
        assert (batch.offset, batch.next_offset) == (offset_of(7), offset_of(9))

    @pytest.mark.spec("base 5.8-13")
    def test_closed_means_up_to_date(self):
        stream = b'event: control\ndata: {"streamNextOffset": "5", "streamClosed": true}\n\n'
        (batch,) = batches_of([stream], TEXT)
        assert batch.closed
        assert batch.up_to_date
        assert batch.cursor is None

    def test_events_of_other_kinds_and_fields_mean_nothing(self):
        stream = (
            b"event: newer\ndata: x\n\ndata: message\n\n"
            b'event: control\ndata: {"streamNextOffset": "5", "later": {"a": 1}}\n\n'
        )
        (batch,) = batches_of([stream], TEXT)
        assert (batch.data, batch.next_offset) == (b"", "5")

    @pytest.mark.spec("base 5.8-5", "base 5.8-6")
    def test_base64_may_be_folded(self):
        encoded = b64encode(b"some bytes")
        stream = b"event: data\ndata: " + encoded[:5] + b"\ndata: " + encoded[5:] + b"\n\n"
        (batch,) = batches_of([stream + control(10)], BINARY, BASE64)
        assert batch.data == b"some bytes"

    @pytest.mark.parametrize(
        "said",
        [
            b"{}",
            b"[]",
            b"null",
            b"not json",
            b'{"streamNextOffset": 5}',
            b'{"streamNextOffset": "5", "streamClosed": "true"}',
            b'{"streamNextOffset": "5", "streamMessageLengths": "1,2"}',
            b'{"streamNextOffset": "5"',
            b'{"streamNextOffset": "\xff"}',
        ],
    )
    def test_malformed_control_event_is_refused(self, said):
        with pytest.raises(BadAnswerError, match="control event"):
            batches_of([b"event: control\ndata: " + said + b"\n\n"], TEXT)

    @pytest.mark.parametrize("data", [b"a", b"####", b"YQ=", "ä".encode()])
    def test_malformed_base64_is_refused(self, data):
        with pytest.raises(BadAnswerError, match="base64"):
            batches_of([b"event: data\ndata: " + data + b"\n\n"], BINARY, BASE64)

    def test_error_event_is_raised(self):
        with pytest.raises(BadAnswerError, match="out of order"):
            batches_of([b"event: error\ndata: out of order\n\n"], TEXT)


class TestLengths:
    def test_come_with_the_control_event(self):
        stream = data_event(b"onetwo", TEXT) + with_lengths(control(6), 0, [3, 6]) + control(6)
        batches = batches_of([stream], TEXT, TELLS)
        assert [batch.lengths for batch in batches] == [(3, 3), ()]

    def test_are_unknown_unless_the_answer_tells_them(self):
        stream = data_event(b"onetwo", TEXT) + with_lengths(control(6), 0, [3, 6])
        (batch,) = batches_of([stream], TEXT)
        assert batch.lengths is None

    def test_of_json_are_in_the_data(self):
        stream = data_event(store_form(b"[1]"), JSON) + control(2)
        (batch,) = batches_of([stream], JSON, {"stream-message-lengths": "json"})
        assert batch.lengths == "json"


class TestExactness:
    def batch(self, data, lengths=(), start=0, size=None):
        end = offset_of(start + (len(data) if size is None else size))
        return Batch(data, TEXT, offset_of(start), end, lengths=lengths)

    def test_bytes_as_many_as_the_offsets_say_are_exact(self):
        assert is_exact(self.batch(b"one"))
        assert is_exact(self.batch(b""))

    def test_fewer_bytes_than_the_offsets_say_are_not(self):
        assert not is_exact(self.batch(b"a\nb", size=4))

    def test_who_does_not_count_in_bytes_is_believed(self):
        assert is_exact(self.batch(b"a\nb", lengths=None, size=4))
        assert is_exact(self.batch(b"[1]", lengths="json", size=2))
        assert is_exact(Batch(b"one", TEXT, "now", offset_of(5), lengths=(3,)))

    @pytest.mark.parametrize(
        ("payload", "told", "changed"),
        [
            (b"a\nb", False, False),
            (b"a\r\nb", True, True),
            (b"a\rb", True, True),
            # By a server that does not tell, it shows only where something is missing.
            (b"a\r\nb", False, True),
            (b"a\rb", False, False),
        ],
    )
    def test_text_whose_line_ends_were_changed_is_left_out(self, payload, told, changed):
        end = 3 + len(payload)
        said = with_lengths(control(end), 3, [end], line_ends_changed=told)
        events = LiveEvents(TELLS, TEXT, offset_of(0))
        batches = events.feed(
            data_event(b"one", TEXT)
            + with_lengths(control(3), 0, [3])
            + data_event(payload, TEXT)
            + said
        )
        assert len(batches) == (1 if changed else 2)
        assert batches[0].data == b"one"
        assert events.line_ends_changed is changed

    @pytest.mark.parametrize(
        ("message", "changed"), [(b'{"a":\n1}', False), (b'{"a":\r\n1}', True), (b"1", False)]
    )
    def test_json_whose_line_ends_were_changed_is_left_out(self, message, changed):
        events = LiveEvents({"stream-message-lengths": "json"}, JSON, offset_of(0))
        stored = store_form(b"[" + message + b",2]")
        batches = events.feed(data_event(stored, JSON) + control(len(stored)))
        assert len(batches) == (not changed)
        assert events.line_ends_changed is changed

    @pytest.mark.parametrize("offset", ["abc", "0_5", "²", ""])
    def test_offset_that_is_none_is_left_to_whoever_cuts_messages(self, offset):
        assert is_exact(Batch(b"one", TEXT, offset_of(0), offset, lengths=(3,)))
        assert is_exact(Batch(b"one", TEXT, offset, offset_of(3), lengths=(3,)))

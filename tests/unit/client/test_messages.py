"""Answers cut into messages, with offsets that can be gone on from."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.client.messages import Assembler, Batch, Message, parse_lengths
from holdfast.errors import BadAnswerError
from holdfast.protocol.content import array_form, frame, frame_all, store_form
from tests.unit.protocol.splits import cut_at, random_cuts

TEXT = "text/plain"
JSON = "application/json; charset=utf-8"
FRAMED = "length-prefixed"


def at(position):
    return f"{position:020d}"


def batch(data, start, lengths=None, *, content_type=TEXT, end=None):
    end = start + len(data) if end is None else end
    return Batch(data, content_type, at(start), at(end), lengths=lengths)


def fed(batches, framing=None):
    assembler = Assembler(framing)
    return [message for each in batches for message in assembler.feed(each)]


def pages_of(messages, cuts, start=0):
    """Batches of a server that tells lengths: cut anywhere, each with what ends in it."""
    stored = b"".join(messages)
    ends, position = [], 0
    for message in messages:
        position += len(message)
        ends.append(position)
    position = 0
    for piece in cut_at(stored, cuts):
        lengths, begun = [], position
        for end in ends:
            if position < end <= position + len(piece):
                lengths.append(end - begun)
                begun = end
        yield batch(piece, start + position, tuple(lengths))
        position += len(piece)


class TestLengths:
    def test_every_message_has_its_offsets(self):
        assert fed([batch(b"onetwothree", 10, (3, 3, 5))]) == [
            Message(b"one", at(10), at(13)),
            Message(b"two", at(13), at(16)),
            Message(b"three", at(16), at(21)),
        ]

    def test_offsets_are_counted_back_from_the_end(self):
        # From `-1` or `now` nobody could count.
        data = Batch(b"onetwo", TEXT, "-1", at(6), lengths=(3, 3))
        assert [message.offset for message in fed([data])] == [at(0), at(3)]

    def test_offsets_keep_their_width(self):
        data = Batch(b"onetwo", TEXT, "5", "11", lengths=(3, 3))
        assert fed([data]) == [Message(b"one", "05", "08"), Message(b"two", "08", "11")]

    def test_message_over_several_batches_comes_with_its_last(self):
        assembler = Assembler(None)
        assert assembler.feed(batch(b"one-lo", 0, (4,))) == [Message(b"one-", at(0), at(4))]
        assert assembler.feed(batch(b"ng-m", 6, ())) == []
        assert assembler.feed(batch(b"", 10, ())) == []
        assert assembler.feed(batch(b"essage!", 10, (6,))) == [
            Message(b"long-message"[:12], at(4), at(16))
        ]
        assert assembler.feed(batch(b"", 17, ())) == []
        assert assembler.feed(batch(b"?", 17, (1,))) == [Message(b"!?", at(16), at(18))]

    @given(st.lists(st.binary(min_size=1, max_size=9), max_size=8), random_cuts)
    def test_any_messages_over_any_batches(self, messages, cuts):
        found = fed(pages_of(messages, cuts, start=100))
        assert [message.payload for message in found] == messages
        position = 100
        for message in found:
            assert message.offset == at(position)
            position += len(message.payload)
            assert message.next_offset == at(position)

    @pytest.mark.parametrize("lengths", [(4,), (2, 2), (-1, 4), (5, -2), (-3,)])
    def test_lengths_that_cannot_be_are_refused(self, lengths):
        with pytest.raises(BadAnswerError, match="lengths of the messages"):
            fed([batch(b"abc", 0, lengths)])

    def test_more_bytes_than_the_offset_allows_are_refused(self):
        with pytest.raises(BadAnswerError, match="lengths of the messages"):
            fed([batch(b"abcdef", 0, (6,), end=5)])

    @pytest.mark.parametrize("offset", ["", "abc", "-5", "0x5", "²", "1_0"])
    def test_offset_that_is_no_number_is_refused(self, offset):
        with pytest.raises(BadAnswerError, match="offset"):
            fed([Batch(b"abc", TEXT, "-1", offset, lengths=(3,))])


class TestServersThatDoNotTell:
    def test_an_answer_is_one_message(self):
        data = Batch(b"onetwo", TEXT, "abc", "def")
        assert fed([data]) == [Message(b"onetwo", "abc", "def")]

    def test_an_empty_answer_is_none(self):
        assert fed([Batch(b"", TEXT, "abc", "abc")]) == []

    def test_an_answer_in_json_is_its_elements(self):
        data = Batch(b'[1, {"a":\n2}, []]', JSON, "abc", "def")
        assert fed([data]) == [
            Message(b"1", "abc", "abc"),
            Message(b'{"a":\n2}', "abc", "abc"),
            Message(b"[]", "abc", "def"),
        ]

    @pytest.mark.parametrize("data", [b"", b"[]", b" [ ] "])
    def test_an_empty_array_is_none(self, data):
        assert fed([Batch(data, JSON, "abc", "def")]) == []

    def test_who_resumes_after_any_element_loses_none(self):
        pages = {"a": (b"[1, 2]", "b"), "b": (b"[3, 4, 5]", "c"), "c": (b"[]", "c")}

        def read(offset):
            while pages[offset][1] != offset:
                data, after = pages[offset]
                yield from fed([Batch(data, JSON, offset, after)])
                offset = after

        whole = [message.json for message in read("a")]
        assert whole == [1, 2, 3, 4, 5]
        for count, message in enumerate(read("a"), start=1):
            resumed = [each.json for each in read(message.next_offset)]
            assert resumed[-len(whole) + count :] == whole[count:] or count == len(whole)
            assert set(whole[count:]) <= set(resumed)


class TestJsonLengths:
    @given(st.lists(st.lists(st.integers() | st.text(max_size=5), max_size=3), min_size=1))
    def test_elements_have_the_offsets_of_the_stored_form(self, values):
        stored = store_form(json.dumps(values).encode())
        data = batch(array_form(stored), 50, "json", content_type=JSON, end=50 + len(stored))
        found = fed([data])
        assert [message.json for message in found] == values
        position = 50
        for message in found:
            assert message.offset == at(position)
            position = stored.index(b"\x1e", position - 50) + 51
            assert message.next_offset == at(position)

    @pytest.mark.parametrize("data", [b"{}", b"[1", b"1", b"null", b"[1,]", b"\xff"])
    def test_what_is_no_array_is_refused(self, data):
        with pytest.raises(BadAnswerError, match="JSON array"):
            fed([batch(data, 0, "json", content_type=JSON)])

    def test_more_text_than_the_offset_allows_is_refused(self):
        with pytest.raises(BadAnswerError, match="lengths of the messages"):
            fed([batch(b"[123, 456]", 0, "json", content_type=JSON, end=5)])

    def test_offset_that_is_no_number_is_refused(self):
        with pytest.raises(BadAnswerError, match="offset"):
            fed([Batch(b"[1]", JSON, "-1", "x5", lengths="json")])


class TestFraming:
    def test_with_lengths_every_record_has_its_offsets(self):
        data = frame_all([b"one", b"", b"three"])
        assert fed([batch(data, 10, (len(data),))], FRAMED) == [
            Message(b"one", at(10), at(17)),
            Message(b"", at(17), at(21)),
            Message(b"three", at(21), at(30)),
        ]

    @given(st.lists(st.binary(max_size=9), max_size=8), random_cuts)
    def test_with_lengths_over_any_batches(self, messages, cuts):
        data, position, batches = frame_all(messages), 7, []
        for piece in cut_at(data, cuts):
            batches.append(batch(piece, position, ()))
            position += len(piece)
        found = fed(batches, FRAMED)
        assert [message.payload for message in found] == messages
        position = 7
        for message in found:
            assert message.offset == at(position)
            position += 4 + len(message.payload)
            assert message.next_offset == at(position)

    def test_without_lengths_reading_on_is_possible_where_nothing_is_held(self):
        one, two, three = frame(b"one"), frame(b"two"), frame(b"three")
        assembler = Assembler(FRAMED)
        assert assembler.feed(Batch(one + two, TEXT, "a", "b")) == [
            Message(b"one", "a", "a"),
            Message(b"two", "a", "b"),
        ]
        assert assembler.feed(Batch(one + two[:3], TEXT, "b", "c")) == [Message(b"one", "b", "b")]
        # What is held began in the batch at `b`, so that is where to go on from.
        assert assembler.feed(Batch(two[3:] + three[:1], TEXT, "c", "d")) == [
            Message(b"two", "b", "b")
        ]
        assert assembler.feed(Batch(three[1:], TEXT, "d", "e")) == [Message(b"three", "b", "e")]
        assert assembler.feed(Batch(one, TEXT, "e", "f")) == [Message(b"one", "e", "f")]

    @given(st.lists(st.binary(max_size=9), min_size=1, max_size=8), random_cuts, st.integers(0, 7))
    def test_without_lengths_who_resumes_loses_none(self, messages, cuts, stop):
        pieces = [piece for piece in cut_at(frame_all(messages), cuts) if piece]
        batches = [Batch(each, TEXT, str(at), str(at + 1)) for at, each in enumerate(pieces)]
        found = fed(batches, FRAMED)
        assert [message.payload for message in found] == messages
        count = min(stop, len(messages) - 1) + 1
        resumed = fed(batches[int(found[count - 1].next_offset) :], FRAMED)
        rest = messages[count:]
        assert [message.payload for message in resumed][len(resumed) - len(rest) :] == rest

    def test_what_is_not_framed_is_refused(self):
        with pytest.raises(BadAnswerError, match="not framed"):
            fed([batch(b"plain text", 0, (10,))], FRAMED)

    def test_more_bytes_than_the_offset_allows_are_refused(self):
        with pytest.raises(BadAnswerError, match="lengths of the messages"):
            fed([batch(frame(b"abc"), 0, (), end=5)], FRAMED)


class TestHeader:
    @pytest.mark.parametrize(
        ("text", "lengths"),
        [
            (None, None),
            ("events", None),
            ("json", "json"),
            ("none", ()),
            ("5", (5,)),
            ("5,17,1", (5, 17, 1)),
        ],
    )
    def test_is_understood(self, text, lengths):
        assert parse_lengths(text) == lengths

    @pytest.mark.parametrize("text", ["", "a", "1,", ",1", "1,,2", "1;2", "1.5", "9" * 5000])
    def test_is_refused(self, text):
        with pytest.raises(BadAnswerError, match="Stream-Message-Lengths"):
            parse_lengths(text)


class TestValues:
    def test_message(self):
        message = Message('{"ä": 1}'.encode(), "a", "b")
        assert message.bytes == message.payload
        assert message.text == '{"ä": 1}'
        assert message.json == {"ä": 1}

    def test_batch(self):
        data = Batch(b"[1, 2]", JSON, "a", "b")
        assert (data.bytes, data.text, data.json) == (b"[1, 2]", "[1, 2]", [1, 2])

    @pytest.mark.parametrize("value", [Message(b"x", "a", "b"), Batch(b"x", JSON, "a", "b")])
    def test_what_is_not_json_says_so(self, value):
        with pytest.raises(BadAnswerError, match="not JSON"):
            _ = value.json

    def test_what_is_not_utf8_says_so(self):
        with pytest.raises(BadAnswerError, match="not JSON"):
            _ = Message(b'"\xff"', "a", "b").json


def test_numbers_that_are_too_large_are_infinite():
    assert Message(b"[1e999, -1e999, 12345678901234567890123]", "", "").json == [
        float("inf"),
        float("-inf"),
        12345678901234567890123,
    ]


def test_json_that_is_nested_too_deeply_is_a_bad_answer():
    deep = b"[" * 100_000 + b"]" * 100_000
    with pytest.raises(BadAnswerError, match="deeply"):
        _ = Message(deep, "", "").json
    with pytest.raises(BadAnswerError, match="deeply"):
        Assembler(None).feed(Batch(deep, "application/json", "-1", "9"))

"""The client's multipart parser: what the server writes, and what others do, cut anywhere."""

from email.parser import BytesParser
from email.policy import HTTP

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import BadAnswerError
from holdfast.protocol.content import store_form
from holdfast.protocol.multipart import (
    PART_HEAD_BYTES_MAX,
    Multipart,
    MultipartParser,
    boundary_of,
)
from tests.unit.protocol.splits import cut_at, random_cuts, single_bytes, two_pieces

BOUNDARY = b"0123456789abcdef"
TEXT = "text/plain"
# Things that look like a boundary, or like the beginning of one.
LOOKALIKES = [
    b"\r\n",
    b"\r",
    b"\n",
    b"\r\n\r\n",
    b"\r\n--",
    b"\r\n-",
    b"--",
    b"--" + BOUNDARY,
    b"\n--" + BOUNDARY,
    b"\r\n--" + BOUNDARY[:-1],
    b"\r\n--" + BOUNDARY[:-1] + b"\r\n\r\n",
    b"\r\n--" + BOUNDARY.upper(),
    b"\r\n\r\n--" + BOUNDARY[:5],
]


def parts_of(pieces, boundary=BOUNDARY):
    """(content type, data) of every part, put together from its pieces."""
    parser, parts, open_part = MultipartParser(boundary), [], False
    for piece in pieces:
        for found in parser.feed(piece):
            assert found.begins is not open_part, "a part begins where the one before has ended"
            if found.begins:
                parts.append((found.headers.get("content-type"), b""))
            parts[-1] = (parts[-1][0], parts[-1][1] + found.data)
            assert parts[-1][0] == found.headers.get("content-type")
            open_part = not found.ends
    parser.finish()
    assert not open_part
    return parts


def body_of(snapshot, messages, boundary=BOUNDARY):
    body = Multipart(boundary, TEXT, TEXT)
    return body.whole("application/cbor", snapshot, messages)


SAMPLE = body_of(b"", [b"one", b"", *LOOKALIKES, b"last"])
SAMPLE_PARTS = [
    ("application/cbor", b""),
    *[(TEXT, data) for data in (b"one", b"", *LOOKALIKES, b"last")],
]


class TestSplits:
    def test_in_one_piece(self):
        assert parts_of([SAMPLE]) == SAMPLE_PARTS

    def test_cut_in_two_at_every_byte(self):
        for pieces in two_pieces(SAMPLE):
            assert parts_of(pieces) == SAMPLE_PARTS, pieces

    def test_byte_by_byte(self):
        assert parts_of(single_bytes(SAMPLE)) == SAMPLE_PARTS

    def test_with_text_before_and_behind_at_every_byte(self):
        body = b"This is a preamble.\r\n--not-it\r\n\r\n\r\n" + SAMPLE + b"An epilogue.\r\n--x\r\n"
        for pieces in two_pieces(body):
            assert parts_of(pieces) == SAMPLE_PARTS, pieces

    def test_parts_without_headers_at_every_byte(self):
        body = b"--b\r\n\r\none\r\n--b\r\n\r\n\r\n--b--"
        for pieces in two_pieces(body):
            assert parts_of(pieces, b"b") == [(None, b"one"), (None, b"")]


class TestRoundTrip:
    def test_nothing_but_an_empty_first_part(self):
        assert parts_of([body_of(b"", [])]) == [("application/cbor", b"")]

    @pytest.mark.parametrize("data", LOOKALIKES)
    def test_first_part_that_looks_like_a_boundary(self, data):
        for pieces in two_pieces(body_of(data, [data])):
            assert parts_of(pieces) == [("application/cbor", data), (TEXT, data)]

    def test_messages_cut_out_of_stored_bytes(self):
        body = Multipart(BOUNDARY, TEXT, TEXT)
        stored, ends = b"onetwothree", [13, 16, 21]
        whole = (
            body.first(TEXT) + b"state" + b"".join(body.messages(stored, 10, ends)) + body.last()
        )
        assert parts_of([whole]) == [(TEXT, each) for each in (b"state", b"one", b"two", b"three")]

    def test_messages_of_a_json_stream(self):
        body = Multipart(BOUNDARY, "application/json", "application/json")
        stored = store_form(b'[1, "two", [3, 4], {"a": null}]')
        whole = body.first(TEXT) + b"".join(body.messages(stored, 0, [])) + body.last()
        kind = "application/json"
        assert parts_of(single_bytes(whole)) == [
            (TEXT, b""),
            (kind, b"1"),
            (kind, b'"two"'),
            (kind, b"[3, 4]"),
            (kind, b'{"a": null}'),
        ]

    @given(st.lists(st.binary(max_size=20) | st.sampled_from(LOOKALIKES), max_size=6), random_cuts)
    def test_any_messages_in_any_pieces(self, messages, cuts):
        expected = [("application/cbor", b""), *[(TEXT, each) for each in messages]]
        assert parts_of(cut_at(body_of(b"", messages), cuts)) == expected


class TestLargeParts:
    DATA = b"0123456789\r\n--0123456789abcde" * 20_000

    def pieces(self, size):
        body = body_of(self.DATA, [b"small", self.DATA])
        return [body[at : at + size] for at in range(0, len(body), size)]

    @pytest.mark.parametrize("size", [1000, 65_536, 65_537, 1_000_000])
    def test_they_arrive_whole(self, size):
        assert parts_of(self.pieces(size)) == [
            ("application/cbor", self.DATA),
            (TEXT, b"small"),
            (TEXT, self.DATA),
        ]

    def test_they_come_in_several_pieces_and_are_not_held(self):
        parser, pieces = MultipartParser(BOUNDARY), []
        for piece in self.pieces(1000):
            pieces += parser.feed(piece)
            assert len(parser._rest) < 70_000
        first = [piece for piece in pieces if piece.headers["content-type"] == "application/cbor"]
        assert len(first) > 5
        assert [piece.begins for piece in first] == [True] + [False] * (len(first) - 1)
        assert [piece.ends for piece in first] == [False] * (len(first) - 1) + [True]

    def test_small_ones_come_in_one_piece_however_they_arrive(self):
        parser = MultipartParser(BOUNDARY)
        body = body_of(b"x" * 1000, [b"y" * 1000])
        found = [piece for byte in single_bytes(body) for piece in parser.feed(byte)]
        assert [(len(piece.data), piece.begins, piece.ends) for piece in found] == [
            (1000, True, True)
        ] * 2


class TestBoundary:
    @pytest.mark.parametrize(
        ("content_type", "boundary"),
        [
            ("multipart/mixed; boundary=abc", b"abc"),
            ('multipart/mixed; boundary="abc"', b"abc"),
            ('multipart/mixed; boundary="a b; c=d,e?"', b"a b; c=d,e?"),
            ("multipart/mixed;boundary=abc;charset=utf-8", b"abc"),
            ("multipart/mixed; charset=utf-8; boundary=abc", b"abc"),
            ("Multipart/Mixed; BOUNDARY=AbC", b"AbC"),
            ("multipart/related; boundary='x'", b"'x'"),
        ],
    )
    def test_is_taken_from_the_content_type(self, content_type, boundary):
        assert boundary_of(content_type) == boundary

    @pytest.mark.parametrize(
        "content_type",
        ["", "text/html", "multipart/mixed", "text/plain; boundary=abc", "multipart/mixed; x=y"],
    )
    def test_is_missing(self, content_type):
        with pytest.raises(BadAnswerError, match="boundary"):
            boundary_of(content_type)

    def test_is_the_one_that_the_server_names(self):
        assert boundary_of(Multipart(BOUNDARY, TEXT, TEXT).content_type.decode()) == BOUNDARY

    def test_quoted_one_with_spaces_separates_parts(self):
        body = body_of(b"a", [b"b"], b"two words")
        assert parts_of([body], b"two words") == [("application/cbor", b"a"), (TEXT, b"b")]


class TestBrokenOff:
    def test_every_shorter_body_is_an_error(self):
        whole = body_of(b"snapshot", [b"one", b"two"]).removesuffix(b"\r\n")
        for at in range(len(whole)):
            parser = MultipartParser(BOUNDARY)
            parser.feed(whole[:at])
            with pytest.raises(BadAnswerError, match="broke off"):
                parser.finish()
        parser = MultipartParser(BOUNDARY)
        parser.feed(whole)
        parser.finish()

    def test_no_part_is_given_as_ended_before_the_boundary_behind_it(self):
        body = body_of(b"snapshot", [b"one"])
        until = body.index(b"one") + 3 + len(b"\r\n--" + BOUNDARY)
        parser = MultipartParser(BOUNDARY)
        found = [piece.data for byte in single_bytes(body[:until]) for piece in parser.feed(byte)]
        assert found == [b"snapshot"]

    def test_nothing_comes_out_of_an_epilogue(self):
        parser = MultipartParser(BOUNDARY)
        body = body_of(b"a", [b"b"])
        assert len(parser.feed(body + body)) == 2
        assert parser.feed(body) == []
        assert parser.complete


class TestHeads:
    def test_names_are_lower_case_and_values_stripped(self):
        parser = MultipartParser(b"b")
        head = b"CONTENT-Type:  text/plain \r\nX-One:1\r\nno colon here\r\nX-Two: a:b"
        (piece,) = parser.feed(b"--b\r\n" + head + b"\r\n\r\nx\r\n--b--")
        assert piece.headers == {"content-type": "text/plain", "x-one": "1", "x-two": "a:b"}

    def test_each_part_has_its_own(self):
        heads = [b"N: 1\r\n", b"N: 2\r\n", b"N: 2\r\n", b""]
        body = b"".join(b"--b\r\n" + head + b"\r\n\r\n" for head in heads) + b"--b--"
        found = MultipartParser(b"b").feed(body)
        assert [piece.headers for piece in found] == [{"n": "1"}, {"n": "2"}, {"n": "2"}, {}]

    def test_one_that_never_ends_is_refused(self):
        parser = MultipartParser(b"b")
        parser.feed(b"--b\r\nX: ")
        while len(parser._rest) <= PART_HEAD_BYTES_MAX - 64:
            parser.feed(b"x" * 64)
        with pytest.raises(BadAnswerError, match=f"longer than {PART_HEAD_BYTES_MAX}"):
            parser.feed(b"x" * 64)

    def test_one_that_is_almost_as_long_is_taken(self):
        value = b"x" * (PART_HEAD_BYTES_MAX - 100)
        pieces = [b"--b\r\nContent-Type: ", value, b"\r\n\r\n", b"data\r\n--b--"]
        assert parts_of(pieces, b"b") == [(value.decode(), b"data")]


# The library takes single line ends for ends of lines, too: the data here has none of them.
plain = st.text("abc-. 019", max_size=12).map(str.encode)


@given(st.lists(plain, min_size=1, max_size=5), plain, plain, random_cuts)
def test_agrees_with_the_standard_library(messages, preamble, epilogue, cuts):
    body = Multipart(BOUNDARY, TEXT, TEXT).whole(TEXT, messages[0], messages[1:])
    body = preamble + b"\r\n" + body + epilogue
    head = b"Content-Type: multipart/mixed; boundary=" + BOUNDARY + b"\r\n\r\n"
    read = BytesParser(policy=HTTP).parsebytes(head + body)
    expected = [
        (part.get_content_type(), part.get_payload().encode()) for part in read.iter_parts()
    ]
    assert parts_of(cut_at(body, cuts)) == expected

"""Idempotent producers: retries, fencing, gaps and closing."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.http.streams import JSON, check_error, producer

LARGEST = 2**53 - 1


@pytest.mark.spec("base 5.2.1-10")
def test_new_data_is_200_with_epoch_and_sequence(new_stream) -> None:
    stream = new_stream()
    for seq in range(3):
        response = stream.append(b"%d" % seq, **producer(seq, epoch=4))
        assert response.status_code == 200
        assert response.headers["Producer-Epoch"] == "4"
        assert response.headers["Producer-Seq"] == str(seq)
        assert response.headers["Stream-Next-Offset"] == stream.tail()
    assert stream.read().content == b"012"


@pytest.mark.spec("base 5.2.1-11")
@pytest.mark.parametrize("seq", [0, 1, 2], ids=["first", "middle", "last"])
def test_duplicate_is_204_with_the_highest_sequence(new_stream, seq) -> None:
    stream = new_stream()
    for number in range(3):
        stream.append(b"%d" % number, **producer(number))
    response = stream.append(b"again", **producer(seq))
    assert response.status_code == 204
    assert response.headers["Producer-Epoch"] == "0"
    assert response.headers["Producer-Seq"] == "2"
    assert stream.read().content == b"012"
    assert stream.append(b"3", **producer(3)).status_code == 200


@pytest.mark.spec("base 5.2.1-11")
def test_duplicate_is_answered_before_stream_seq_is_compared(new_stream) -> None:
    stream = new_stream()
    assert stream.append(b"x", stream_seq="1", **producer(0)).status_code == 200
    assert stream.append(b"x", stream_seq="1", **producer(0)).status_code == 204
    check_error(stream.append(b"y", stream_seq="1", **producer(1)), 409, "stream_seq_regression")
    assert stream.append(b"y", stream_seq="2", **producer(1)).status_code == 200


def test_another_digest_under_the_last_sequence_is_409(new_stream) -> None:
    """A digest is checked where the server has one: with the last request of the epoch."""
    stream = new_stream()
    digests = ["00" * 8, "0123456789abcdef", "FF" * 8]
    for seq, digest in enumerate(digests):
        response = stream.append(b"%d" % seq, producer_digest=digest, **producer(seq))
        assert response.status_code == 200
    for seq, digest in [(2, "ff" * 8), (2, None), (0, "ee" * 8), (1, digests[1])]:
        sent = {} if digest is None else {"producer_digest": digest}
        response = stream.append(b"again", **sent, **producer(seq))
        assert response.status_code == 204
        assert response.headers["Producer-Seq"] == "2"
        assert response.headers["Producer-Digest"] == "ff" * 8
    response = stream.append(b"other", producer_digest="ee" * 8, **producer(2))
    check_error(response, 409, "producer_digest_mismatch")
    assert response.headers["Producer-Epoch"] == "0"
    assert response.headers["Producer-Seq"] == "2"
    assert response.headers["Producer-Digest"] == "ff" * 8
    # A request without a digest, and a new epoch, leave none behind.
    assert stream.append(b"3", **producer(3)).status_code == 200
    again = stream.append(b"3", producer_digest="ee" * 8, **producer(3))
    assert again.status_code == 204
    assert "Producer-Digest" not in again.headers
    assert stream.append(b"4", producer_digest="11" * 8, **producer(0, epoch=1)).is_success
    assert stream.read().content == b"01234"


@pytest.mark.parametrize("digest", ["", "12", "0" * 15, "0" * 17, "0x" + "0" * 14, "g" * 16])
def test_malformed_digest_is_400(new_stream, digest) -> None:
    response = new_stream().append(b"x", producer_digest=digest, **producer(0))
    check_error(response, 400, about="Producer-Digest")


def test_repeated_close_with_another_digest_is_409(new_stream) -> None:
    stream = new_stream()
    closing = {"stream_closed": "true", **producer(0)}
    assert stream.append(b"end", producer_digest="11" * 8, **closing).status_code == 200
    again = stream.append(b"end", producer_digest="11" * 8, **closing)
    assert (again.status_code, again.headers["Producer-Digest"]) == (204, "11" * 8)
    assert stream.append(b"end", **closing).status_code == 204
    other = stream.append(b"other", producer_digest="22" * 8, **closing)
    check_error(other, 409, "producer_digest_mismatch")


@pytest.mark.spec("base 5.2.1-12")
def test_stale_epoch_is_403_with_the_current_one(new_stream) -> None:
    stream = new_stream()
    stream.append(b"new", **producer(0, epoch=5))
    for seq in (0, 1, 7):
        response = stream.append(b"zombie", **producer(seq, epoch=4))
        check_error(response, 403, "stale_producer_epoch")
        assert response.headers["Producer-Epoch"] == "5"
    assert stream.read().content == b"new"


@pytest.mark.spec("base 5.2.1-15")
def test_producer_that_lost_its_epoch_claims_the_next(new_stream) -> None:
    stream = new_stream()
    stream.append(b"old,", **producer(0, epoch=5))
    current = int(stream.append(b"x", **producer(0)).headers["Producer-Epoch"])
    claimed = stream.append(b"new", **producer(0, epoch=current + 1))
    assert claimed.status_code == 200
    assert claimed.headers["Producer-Epoch"] == "6"
    assert stream.append(b"zombie", **producer(1, epoch=5)).status_code == 403
    assert stream.read().content == b"old,new"


@pytest.mark.spec("base 5.2.1-13")
def test_gap_is_409_with_what_was_expected_and_received(new_stream) -> None:
    stream = new_stream()
    stream.append(b"0", **producer(0))
    response = stream.append(b"2", **producer(2))
    check_error(response, 409, "producer_sequence_gap")
    assert response.headers["Producer-Expected-Seq"] == "1"
    assert response.headers["Producer-Received-Seq"] == "2"
    assert stream.read().content == b"0"
    assert stream.append(b"1", **producer(1)).status_code == 200


@pytest.mark.spec("base 5.2.1-14")
def test_new_epoch_that_does_not_start_at_zero_is_400(new_stream) -> None:
    stream = new_stream()
    stream.append(b"0", **producer(0))
    check_error(stream.append(b"x", **producer(1, epoch=1)), 400, about="epoch")
    assert stream.append(b"1", **producer(1)).status_code == 200


def test_unknown_producer_that_does_not_start_at_zero_is_refused(new_stream) -> None:
    stream = new_stream()
    assert stream.append(b"x", **producer(3)).status_code in {400, 409}
    assert stream.read().content == b""


@pytest.mark.spec("base 5.2.1-17")
def test_producers_and_streams_are_independent(new_stream) -> None:
    one, other = new_stream(), new_stream()
    for stream in (one, other):
        for name in ("a", "b", "A"):
            assert stream.append(b"x", **producer(0, epoch=2, name=name)).status_code == 200
    assert one.append(b"y").status_code == 204
    assert one.append(b"z", **producer(1, epoch=2, name="a")).status_code == 200
    assert one.read().content == b"xxxyz"
    assert other.read().content == b"xxx"


@pytest.mark.spec("base 5.2.1-1", "base 5.2.1-2")
@pytest.mark.parametrize("missing", ["producer_id", "producer_epoch", "producer_seq"])
@pytest.mark.parametrize("several", [False, True], ids=["one missing", "two missing"])
def test_some_producer_headers_without_the_others_are_400(new_stream, missing, several) -> None:
    stream = new_stream()
    headers = producer(0)
    kept = headers.pop(missing)
    if several:
        headers = {missing: kept}
    check_error(stream.append(b"x", **headers), 400, about="Producer-")
    assert stream.read().content == b""


@pytest.mark.spec("base 5.2.1-3")
def test_empty_producer_id_is_400(new_stream) -> None:
    check_error(new_stream().append(b"x", **producer(0, name="")), 400, about="Producer-Id")


@pytest.mark.spec("base 5.2.1-4", "base 5.2.1-5")
@pytest.mark.parametrize("header", ["Producer-Epoch", "Producer-Seq"])
@pytest.mark.parametrize(
    "value", ["-1", "+1", "1.0", "1e3", "abc", "1abc", "", "0x1", str(LARGEST + 1), "9" * 400]
)
def test_malformed_epoch_or_sequence_is_400(new_stream, header, value) -> None:
    stream = new_stream()
    headers = producer(0) | {header.lower().replace("-", "_"): value}
    check_error(stream.append(b"x", **headers), 400, about=header)
    assert stream.read().content == b""


@pytest.mark.spec("base 5.2.1-4")
def test_largest_epoch_is_accepted(new_stream) -> None:
    response = new_stream().append(b"x", **producer(0, epoch=LARGEST))
    assert response.status_code == 200
    assert response.headers["Producer-Epoch"] == str(LARGEST)


@pytest.mark.spec("base 5.2.1-5")
def test_largest_sequence_is_well_formed(new_stream) -> None:
    stream = new_stream()
    stream.append(b"x", **producer(0))
    response = stream.append(b"x", **producer(LARGEST))
    check_error(response, 409, "producer_sequence_gap")
    assert response.headers["Producer-Received-Seq"] == str(LARGEST)


@pytest.mark.spec("base 5.2.1-6")
def test_racing_retries_store_each_append_once(new_stream) -> None:
    stream = new_stream()
    with ThreadPoolExecutor(8) as pool:
        for seq in range(10):
            attempts = [pool.submit(stream.append, b"%d," % seq, **producer(seq)) for _ in range(8)]
            responses = [attempt.result() for attempt in attempts]
            assert sorted(response.status_code for response in responses) == [200] + [204] * 7
            assert {response.headers["Producer-Seq"] for response in responses} == {str(seq)}
    assert stream.read().content == b"0,1,2,3,4,5,6,7,8,9,"


@pytest.mark.spec("base 5.2.1-6")
def test_pipelined_sequences_are_all_accepted_in_order(new_stream, connect) -> None:
    stream, connection = new_stream(), connect()
    for seq in range(50):
        headers = ("Content-Type: text/plain", "Producer-Id: p", "Producer-Epoch: 0",
                   f"Producer-Seq: {seq}")  # fmt: skip
        connection.request("POST", stream.url, *headers, body=b"%d," % seq)
    assert [connection.response("POST").status for _ in range(50)] == [200] * 50
    assert stream.read().content == b"".join(b"%d," % seq for seq in range(50))


def test_refused_append_leaves_no_producer_state(new_stream) -> None:
    stream = new_stream(JSON)
    assert stream.append(b"{", **producer(0, epoch=3)).status_code == 400
    assert stream.append(b"1", **producer(0, epoch=3), content_type="text/plain").status_code == 409
    assert stream.append(b"1", **producer(0)).status_code == 200


def test_producer_of_another_content_type_is_409(new_stream) -> None:
    response = new_stream().append(b"{}", content_type=JSON, **producer(0))
    check_error(response, 409, "content_type_mismatch")


@pytest.mark.spec("base 5.2.1-9")
@pytest.mark.parametrize("body", [b"end", None], ids=["with content", "close only"])
def test_repeated_close_by_the_same_request_is_204(new_stream, body) -> None:
    stream = new_stream()
    stream.append(b"start,", **producer(0))

    def close():
        if body is None:
            return stream.close(**producer(1))
        return stream.append(body, stream_closed="true", **producer(1))

    first, again = close(), close()
    assert first.status_code == (204 if body is None else 200)
    assert again.status_code == 204
    for response in (first, again):
        assert response.headers["Stream-Closed"] == "true"
        assert response.headers["Producer-Epoch"] == "0"
        assert response.headers["Producer-Seq"] == "1"
        assert response.headers["Stream-Next-Offset"] == stream.tail()
    assert stream.read().content == b"start," + (body or b"")


@pytest.mark.spec("base 5.2.1-9")
def test_repeated_close_with_another_body_changes_nothing(new_stream) -> None:
    stream = new_stream()
    stream.append(b"end", stream_closed="true", **producer(0))
    again = stream.append(b"something else", stream_closed="true", **producer(0))
    assert again.status_code == 204
    assert stream.read().content == b"end"


@pytest.mark.spec("base 5.2.1-16")
@pytest.mark.parametrize(
    "headers",
    [producer(0), producer(2), producer(0, epoch=1), producer(1, name="other")],
    ids=["earlier", "next", "new epoch", "other producer"],
)
def test_closed_stream_refuses_every_other_producer_request(new_stream, headers) -> None:
    stream = new_stream()
    stream.append(b"0", **producer(0))
    stream.append(b"1", stream_closed="true", **producer(1))
    for closing in ({}, {"stream_closed": "true"}):
        response = stream.append(b"x", **headers, **closing)
        check_error(response, 409, "stream_closed")
        assert response.headers["Stream-Closed"] == "true"
        assert response.headers["Stream-Next-Offset"] == stream.tail()
    assert stream.read().content == b"01"

"""Encoded responses: what can be undone is undone, as it arrives."""

import gzip

import pytest

from tests.proxy.proxying import body_of, ended, frames_of, kinds_of
from tests.upstreams import Reply

TEXT = b"a line of text that is said again and again\n" * 200


def recorded(proxy, upstream, **query: object):
    upstream.routes["/text"] = lambda _request: Reply(TEXT)
    frames = proxy.recorded(upstream.url("/text", **query))
    return frames[0].json["headers"], frames


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "raw-deflate"])
@pytest.mark.parametrize("framing", ["length", "chunked"])
@pytest.mark.parametrize("piece", [7, 5000])
def test_encodings_are_undone(proxy, upstream, encoding, framing, piece) -> None:
    headers, frames = recorded(proxy, upstream, encoding=encoding, framing=framing, piece=piece)
    assert headers == {"content-type": "text/plain"}
    assert kinds_of(frames) == "SDC"
    assert body_of(frames) == TEXT


def test_events_can_be_read_while_an_encoded_response_goes_on(proxy, upstream) -> None:
    url = upstream.url("/v1/chat/completions", text="so many words", gate=1, encoding="gzip")
    location = proxy.created(url)
    request = upstream.next()
    for count, word in ((2, b"so"), (1, b"many"), (1, b"words")):
        request.release(count)
        proxy.frames(location, lambda frames, word=word: word in body_of(frames))
    request.release_all()
    assert body_of(proxy.frames(location)).endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, br", "compress"])
def test_other_encodings_are_kept_and_told(proxy, upstream, encoding) -> None:
    headers, frames = recorded(proxy, upstream, encoding=encoding, framing="length")
    assert headers["content-encoding"] == encoding
    assert headers["content-length"] == str(len(TEXT))
    assert body_of(frames) == TEXT


def test_identity_is_no_encoding(proxy, upstream) -> None:
    headers, frames = recorded(proxy, upstream, encoding="identity", framing="length")
    assert headers["content-length"] == str(len(TEXT))
    assert body_of(frames) == TEXT


def test_encodings_that_break_off_keep_what_came(proxy, upstream) -> None:
    _, frames = recorded(proxy, upstream, encoding="gzip", truncate=9)
    assert kinds_of(frames) == "SDE"
    assert TEXT.startswith(body_of(frames))


def test_what_claims_to_be_encoded_and_is_not(proxy, upstream) -> None:
    upstream.routes["/plain"] = lambda _request: Reply(TEXT, headers=[("content-encoding", "gzip")])
    frames = proxy.recorded(upstream.url("/plain"))
    assert kinds_of(frames) == "SE"
    assert frames[-1].json["code"] == "UPSTREAM_ERROR"


def test_an_empty_encoded_response(proxy, upstream) -> None:
    upstream.routes["/empty"] = lambda _request: Reply(b"", headers=[("content-encoding", "gzip")])
    assert kinds_of(proxy.recorded(upstream.url("/empty"))) == "SC"


def test_several_members(proxy, upstream) -> None:
    body = gzip.compress(b"one ") + gzip.compress(b"two")
    upstream.routes["/two"] = lambda _request: Reply(body, headers=[("content-encoding", "gzip")])
    assert body_of(proxy.recorded(upstream.url("/two"))) == b"one two"


def test_a_few_bytes_do_not_become_very_many(strict, upstream) -> None:
    """The limit is on what is recorded, not on what is sent."""
    bomb = gzip.compress(bytes(50_000_000))
    upstream.routes["/bomb"] = lambda _request: Reply(bomb, headers=[("content-encoding", "gzip")])
    location = strict.created(upstream.url("/bomb"))
    *_, error = frames = strict.frames(location)
    assert kinds_of(frames) == "SDE"
    assert error.json == {"code": "UPSTREAM_ERROR", "message": "The response exceeds 300000 bytes."}
    assert len(body_of(frames)) <= 300_000


def test_responses_that_are_too_large(strict, upstream) -> None:
    location = strict.created(upstream.url("/bytes", count=300_000))
    assert kinds_of(strict.frames(location)) == "SDC"
    strict.appended(location, upstream.url("/bytes", count=300_001, delay_ms=1))
    frames = strict.frames(location, ended(2))
    assert kinds_of(frames, 2) == "SDE"
    assert frames_of(strict.client.get(strict.at(location)).content) == frames

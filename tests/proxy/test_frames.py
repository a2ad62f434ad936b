"""Frames, byte by byte."""

import json
import struct

import pytest

from tests.proxy.proxying import TERMINAL, bytes_of, ended, frames_of, kinds_of


@pytest.mark.spec("proxy 5.1-1", "proxy 5.1-2", "proxy 5.2-1", "proxy 5.2-2", "proxy 5.2-8")
def test_a_whole_stream(proxy, upstream) -> None:
    location = proxy.created(upstream.url("/fixed", body="hello", header="X-A: b"))
    proxy.frames(location)
    start = json.dumps(
        {
            "status": 200,
            "headers": {"content-type": "text/plain", "x-a": "b", "content-length": "5"},
        },
        separators=(",", ":"),
    ).encode()
    assert proxy.client.get(location).content == (
        b"S\x00\x00\x00\x01" + struct.pack(">I", len(start)) + start
        + b"D\x00\x00\x00\x01\x00\x00\x00\x05hello"
        + b"C\x00\x00\x00\x01\x00\x00\x00\x00"
    )  # fmt: skip


@pytest.mark.spec("proxy 5.1-1", "proxy 5.2-1", "proxy 5.2-9")
def test_an_aborted_response(proxy, upstream) -> None:
    location = proxy.created(upstream.url("/bytes", count=9, piece=9, gate=1))
    assert proxy.abort(location).status_code == 204
    data = proxy.client.get(location).content
    assert data.endswith(b"}A\x00\x00\x00\x01\x00\x00\x00\x00")
    assert kinds_of(frames_of(data)) == "SA"


@pytest.mark.spec("proxy 5.1-1", "proxy 5.2-1", "proxy 5.2-10", "proxy 5.2-11", "proxy 9.2-2")
def test_a_failed_response(proxy, upstream) -> None:
    location = proxy.created(upstream.url("/bytes", count=20, piece=10, after=1, end="cut"))
    *_, error = proxy.frames(location)
    assert kinds_of(proxy.now(location)) == "SDE"
    assert set(error.json) == {"code", "message"}
    assert error.json["code"] == "UPSTREAM_ERROR"
    payload = json.dumps(error.json, separators=(",", ":"), ensure_ascii=False).encode()
    head = b"E\x00\x00\x00\x01" + struct.pack(">I", len(payload))
    assert proxy.client.get(location).content.endswith(head + payload)


@pytest.mark.spec("proxy 5.2-4", "proxy 5.2-5", "proxy 5.3-1", "proxy 5.3-2", "proxy 5.1-2")
def test_every_response_begins_once_and_ends_once(proxy, upstream) -> None:
    location = proxy.connected()
    fine = {"count": 100_000, "piece": 9000}
    urls = [
        upstream.url("/bytes", **fine),
        upstream.url("/bytes", **fine, after=3, end="cut"),
        upstream.url("/bytes", **fine, framing="length", after=3, end="reset"),
        upstream.url("/bytes", **fine, encoding="gzip", truncate=3),
        upstream.url("/fixed"),
    ]
    for url in urls:
        proxy.appended(location, url)
    silent = proxy.appended(location, upstream.url("/bytes", **fine, after=3, end="silent"))
    proxy.frames(location, lambda frames: kinds_of(frames, silent) == "SD")
    assert proxy.abort(location, response=silent).status_code == 204
    frames = proxy.frames(location, ended(*range(1, 7)))
    assert bytes_of(frames) == proxy.client.get(location).content
    assert [kinds_of(frames, number) for number in range(1, 7)] == [
        "SDC",
        "SDE",
        "SDE",
        "SDE",
        "SC",
        "SDA",
    ]
    starts = [each.response_id for each in frames if each.type == "S"]
    assert starts == [1, 2, 3, 4, 5, 6]
    assert sorted(each.response_id for each in frames if each.type in TERMINAL) == starts


@pytest.mark.spec("proxy 5.2-11")
def test_an_upstream_whose_encoding_is_damaged(proxy, upstream) -> None:
    *_, error = proxy.recorded(upstream.url("/fixed", body="x" * 50, encoding="gzip", truncate=4))
    assert error.json["code"] == "UPSTREAM_ERROR"
    assert "gzip" in error.json["message"]


@pytest.mark.spec("proxy 5.2-7", "proxy 9.2-1")
def test_small_chunks_are_gathered(proxy, upstream) -> None:
    """Thousands of bytes, each a write of its own, do not become thousands of frames."""
    frames = proxy.recorded(upstream.url("/bytes", count=6000, piece=1))
    assert kinds_of(frames) == "SDC"
    sizes = [len(each.payload) for each in frames if each.type == "D"]
    assert sum(sizes) == 6000
    assert len(sizes) < 600


@pytest.mark.spec("proxy 9.2-1", "proxy 4.2-9")
def test_what_is_gathered_does_not_wait_for_more(proxy, upstream) -> None:
    """Each piece can be read though the upstream is silent after it."""
    location = proxy.created(upstream.url("/bytes", count=4, piece=1, gate=1))
    request = upstream.next()
    for count in range(1, 5):
        request.release()
        proxy.frames(location, lambda frames, count=count: data_bytes(frames) == count)
    request.release()
    proxy.frames(location)


def data_bytes(frames) -> int:
    return sum(len(each.payload) for each in frames if each.type == "D")

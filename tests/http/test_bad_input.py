"""Malformed requests: refused, with an error that says what is wrong and why."""

import json

import pytest

from holdfast.http.openapi import document
from tests.http.raw import RawResponse
from tests.http.streams import ERROR_CODE, check_error
from tests.thorough import for_each

BODY_BYTES_MAX = 8 * 1024 * 1024
TYPE = "Content-Type: text/plain"


def check_raw_error(response: RawResponse, status: int, code: str = "") -> None:
    assert response.status == status
    error = json.loads(response.body)["error"]
    assert ERROR_CODE.fullmatch(error["code"])
    assert code in {"", error["code"]}
    assert len(error["message"]) >= 10


MALFORMED_OFFSETS = {
    "empty": "",
    "comma": "0,1",
    "space": "0 1",
    "slash": "0/1",
    "NUL": "0\x00",
    "newline": "0\n",
    "too long": "0" * 21,
    "signed": "-5",
    "leading space": " 5",
    "exponent": "1e3",
    "underscore": "1_000",
    "superscript": "\u00b2",
    "huge": "9" * 20,
    "negative": "-2",
    "plus": "+" + "0" * 19,
    "letters": "x" * 20,
    "other digits": "\u0660" * 20,
    "capital sentinel": "NOW",
    "spaced sentinel": " -1",
    "upstream form": "0000000000000000_0000000000000000",
    "traversal": "../../etc/passwd",
    "very long": "0" * 3000,
}


@pytest.mark.spec("base 5.6-10")
@for_each("offset", MALFORMED_OFFSETS.values())
@for_each("live", [None, "long-poll", "sse"])
def test_malformed_offset_is_400(new_stream, offset, live) -> None:
    response = new_stream(body=b"hello").get({"offset": offset, "live": live})
    check_error(response, 400, "invalid_offset", about="offset")


@pytest.mark.spec("base 5.6-10")
@pytest.mark.parametrize(
    "query", ["offset=-1&offset=-1", "offset=-1&offset=now", "offset&offset=-1"]
)
def test_repeated_offset_is_400(client, new_stream, query) -> None:
    check_error(client.get(f"{new_stream().url}?{query}"), 400, about="offset")


@pytest.mark.spec("base 5.6-10")
@pytest.mark.parametrize("live", ["websocket", "", "SSE", "true", "long_poll"])
def test_unknown_live_is_400(new_stream, live) -> None:
    response = new_stream(body=b"x").get({"offset": "-1", "live": live})
    check_error(response, 400, about="live")


@pytest.mark.spec("base 5.6-10")
def test_repeated_live_is_400(client, new_stream) -> None:
    response = client.get(f"{new_stream().url}?offset=-1&live=sse&live=long-poll")
    check_error(response, 400, about="live")


@pytest.mark.spec("base 5.1-10")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Content-Type", "text/plain"),
        ("Stream-TTL", "60"),
        ("Stream-Expires-At", "2099-01-31T12:00:00Z"),
    ],
)
def test_repeated_header_on_put_is_400(client, absent, name, value) -> None:
    stream = absent()
    response = client.put(stream.url, headers=[(name, value), (name, value)])
    check_error(response, 400, about=name)
    assert stream.head().status_code == 404


@pytest.mark.parametrize(
    "name", ["Content-Type", "Stream-Seq", "Producer-Id", "Producer-Epoch", "Producer-Seq"]
)
def test_repeated_header_on_post_is_400(client, new_stream, name) -> None:
    stream = new_stream()
    values = {
        "Content-Type": "text/plain",
        "Stream-Seq": "1",
        "Producer-Id": "p",
        "Producer-Epoch": "0",
        "Producer-Seq": "0",
    }
    headers = [*values.items(), (name, values[name])]
    check_error(client.post(stream.url, content=b"x", headers=headers), 400, about=name)
    assert stream.read().content == b""


def test_json_body_that_cannot_be_decoded_is_400(client) -> None:
    """On every route whose body is JSON."""
    described = document(None)
    headers = {"Content-Type": "application/json", "Authorization": "Bearer x"}
    routes = [
        (method, path.format(subscription="workers"), operation["requestBody"]["content"])
        for path, operations in described["paths"].items()
        for method, operation in operations.items()
        if method in {"put", "post"}
        and list(operation.get("requestBody", {}).get("content", ())) == ["application/json"]
    ]
    assert len(routes) >= 8
    for method, path, content in routes:
        kind = content["application/json"]["schema"]["$ref"].rpartition("/")[2]
        fields = described["components"]["schemas"][kind]["properties"]
        bodies = [b'{"%b":"\xff"}' % field.encode() for field in fields]
        for body in (*bodies, b"\xff\xfe{\0}\0", b"[" * 9999, b"{", b"null"):
            response = client.request(method, path, content=body, headers=headers)
            assert response.status_code == 400, (path, body, response.text)
            assert "Malformed request" in response.json()["error"]["message"]


@pytest.mark.spec("base 5.2-19")
@pytest.mark.parametrize("method", ["PUT", "POST"])
def test_announced_body_that_is_too_large_is_413(new_stream, absent, connect, method) -> None:
    stream = new_stream() if method == "POST" else absent()
    connection = connect()
    connection.request(method, stream.url, TYPE, f"Content-Length: {BODY_BYTES_MAX + 1}")
    check_raw_error(connection.response(), 413, "payload_too_large")
    assert stream.head().status_code == (200 if method == "POST" else 404)


@pytest.mark.spec("base 5.2-19")
def test_chunked_body_that_grows_too_large_is_413(new_stream, connect) -> None:
    stream, connection = new_stream(), connect()
    connection.request("POST", stream.url, TYPE, "Transfer-Encoding: chunked")
    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    for _ in range(BODY_BYTES_MAX // 0x10000):
        connection.send(chunk)
    connection.send(b"1\r\nx\r\n")
    check_raw_error(connection.response(), 413, "payload_too_large")
    assert stream.read().content == b""


@pytest.mark.spec("base 5.2-19")
@pytest.mark.parametrize("chunked", [False, True], ids=["announced", "chunked"])
def test_largest_body_is_accepted(new_stream, chunked) -> None:
    stream = new_stream()
    body = b"x" * BODY_BYTES_MAX
    assert stream.append(iter([body]) if chunked else body).status_code == 204
    assert stream.tail() == str(BODY_BYTES_MAX).zfill(20)


@pytest.mark.spec("base 5.2-19")
def test_limit_is_a_setting(start_server, stream_on) -> None:
    stream = stream_on(start_server(body_bytes_max=10))
    assert stream.append(b"x" * 10).status_code == 204
    check_error(stream.append(b"x" * 11), 413, "payload_too_large", about="10")
    check_error(stream.append(iter([b"x" * 6, b"x" * 5])), 413, "payload_too_large", about="10")


BAD_PATHS = {
    "parent": "a/../b",
    "leading parent": "../secret",
    "trailing parent": "a/..",
    "encoded parent": "a/%2e%2e/b",
    "half encoded parent": "a/.%2E/b",
    "encoded slash": "..%2f..%2fetc%2fpasswd",
    "dot": "a/./b",
    "NUL": "a%00b",
    "trailing NUL": "a%00",
    "not UTF-8": "a%ff",
    "surrogate": "a%ed%a0%80",
    "overlong": "a" * 6000,
    "overlong in pieces": "/".join(["a"] * 3000),
    "empty": "",
}


@pytest.mark.spec("base 10.2-2")
@for_each("path", BAD_PATHS.values())
@for_each("method", ["PUT", "GET"])
def test_bad_path_is_400(connect, method, path) -> None:
    connection = connect()
    connection.request(method, f"/v1/stream/{path}", TYPE)
    check_raw_error(connection.response(), 400, "invalid_request")


@pytest.mark.spec("base 10.2-2")
def test_paths_that_merely_look_odd_are_fine(client, absent) -> None:
    for odd in ("...", "a..b", "..a", ".hidden", "a.", "-1", "now", "a%25b", "%E2%82%AC"):
        assert client.put(f"{absent().url}/{odd}").status_code == 201


@pytest.mark.parametrize(
    "target", ["/", "/cluster/nowhere", "/v1", "/v1/", "/v1/nothing", "/v1/streams/a", "/readyz"]
)
def test_unknown_route_is_404(client, target) -> None:
    check_error(client.get(target), 404, "not_found")


@pytest.mark.parametrize("method", ["PATCH", "TRACE", "PROPFIND"])
def test_other_method_is_405_with_allow(client, new_stream, method) -> None:
    response = client.request(method, new_stream().url)
    check_error(response, 405, "method_not_allowed", about=method)
    allowed = {name.strip() for name in response.headers["Allow"].split(",")}
    assert allowed == {"GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS"}


@pytest.mark.spec("base 5.2.1-2")
@pytest.mark.parametrize("method", ["PUT", "POST"])
def test_partial_producer_headers_are_400(client, new_stream, absent, method) -> None:
    stream = new_stream() if method == "POST" else absent()
    headers = {"Content-Type": "text/plain", "Producer-Id": "p", "Producer-Seq": "0"}
    response = client.request(method, stream.url, content=b"x", headers=headers)
    check_error(response, 400, about="Producer-Epoch")


def test_overlong_stream_seq_is_400(new_stream) -> None:
    check_error(new_stream().append(b"x", stream_seq="9" * 5000), 400, about="Stream-Seq")


def test_overlong_producer_id_is_400(new_stream) -> None:
    headers = {"producer_id": "p" * 5000, "producer_epoch": "0", "producer_seq": "0"}
    check_error(new_stream().append(b"x", **headers), 400, about="Producer-Id")


def test_message_repeats_no_more_than_a_part_of_the_input(new_stream) -> None:
    response = new_stream().read("y" * 20_000)
    check_error(response, 400, "invalid_offset")
    assert len(response.content) < 1000

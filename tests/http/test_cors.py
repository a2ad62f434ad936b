"""Cross-origin requests from browsers."""

import pytest

ORIGIN = {"Origin": "https://app.example.com"}
READABLE = {
    "Stream-Next-Offset", "Stream-Cursor", "Stream-Up-To-Date", "Stream-Closed", "Stream-TTL",
    "Stream-Expires-At", "Stream-SSE-Data-Encoding", "Producer-Epoch", "Producer-Seq",
    "Producer-Expected-Seq", "Producer-Received-Seq", "ETag", "Location",
}  # fmt: skip
SENDABLE = {
    "Content-Type", "Authorization", "If-None-Match", "Stream-Seq", "Stream-TTL",
    "Stream-Expires-At", "Stream-Closed", "Producer-Id", "Producer-Epoch", "Producer-Seq",
}  # fmt: skip


def names(value: str) -> set[str]:
    return {name.strip().lower() for name in value.split(",")}


def lower(values: set[str]) -> set[str]:
    return {value.lower() for value in values}


def preflight(client, url: str, method: str, headers: str):
    return client.options(
        url,
        headers=ORIGIN
        | {"Access-Control-Request-Method": method, "Access-Control-Request-Headers": headers},
    )


def test_preflight_is_204_and_allows_what_the_protocol_uses(client, absent) -> None:
    response = preflight(client, absent().url, "POST", "content-type,producer-id")
    assert response.status_code == 204
    assert response.content == b""
    assert response.headers["Access-Control-Allow-Origin"] == "*"
    allowed = names(response.headers["Access-Control-Allow-Methods"])
    assert allowed >= {"get", "head", "put", "post", "delete"}
    assert names(response.headers["Access-Control-Allow-Headers"]) >= lower(SENDABLE)
    assert int(response.headers["Access-Control-Max-Age"]) > 0


def test_preflight_needs_no_stream(client, new_stream, absent) -> None:
    for stream in (new_stream(), absent()):
        assert preflight(client, stream.url, "PUT", "stream-ttl").status_code == 204


def test_options_without_origin_is_204_too(client, absent) -> None:
    assert client.options(absent().url).status_code == 204


@pytest.mark.parametrize("kind", ["read", "append", "head", "missing", "bad", "closed"])
def test_every_answer_may_be_read_across_origins(client, new_stream, absent, kind) -> None:
    stream = absent() if kind == "missing" else new_stream(body=b"x")
    if kind == "closed":
        stream.close()
    method = {"append": "POST", "closed": "POST", "head": "HEAD"}.get(kind, "GET")
    headers = ORIGIN | {"Content-Type": "text/plain"}
    target = f"{stream.url}?offset=nonsense" if kind == "bad" else stream.url
    content = b"x" if method == "POST" else None
    response = client.request(method, target, content=content, headers=headers)
    assert response.headers["Access-Control-Allow-Origin"] == "*"
    assert names(response.headers["Access-Control-Expose-Headers"]) >= lower(READABLE)


def test_events_may_be_read_across_origins(new_stream) -> None:
    with new_stream(body=b"x").sse() as events:
        assert events.response.headers["Access-Control-Allow-Origin"] == "*"


def test_origin_is_a_setting(start_server, stream_on) -> None:
    origin = "https://app.example.com"
    stream = stream_on(start_server(cors_origin=origin), body=b"x")
    assert stream.read().headers["Access-Control-Allow-Origin"] == origin


def test_preflight_of_a_bucket_that_is_not_there_yet_is_answered(client):
    answer = preflight(client, "/no-such-bucket/a", "PUT", "Content-Type")
    assert answer.status_code == 204

"""Whatever is sent, the answer is a proper one: never a 5xx, never a hang, always whole."""

import httpx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.http.streams import JSON, check_error
from tests.thorough import examples

# Bytes a header value may hold on the wire, without the spaces that are stripped at its ends.
VALUES = st.binary(max_size=40).map(
    lambda raw: bytes(byte for byte in raw if byte >= 0x20 and byte != 0x7F).strip()
)
LIKELY = st.sampled_from(
    [b"true", b"0", b"1", b"-1", b"now", b"text/plain", b"application/json", b"*", b"p", b'"x"']
)
NAMES = st.sampled_from(
    [b"Content-Type", b"Stream-TTL", b"Stream-Expires-At", b"Stream-Closed", b"Stream-Seq",
     b"Producer-Id", b"Producer-Epoch", b"Producer-Seq", b"If-None-Match", b"If-Match",
     b"Accept-Encoding", b"Origin", b"Expect"]
)  # fmt: skip
HEADERS = st.dictionaries(NAMES, LIKELY | VALUES, max_size=6)
PARAMETERS = st.dictionaries(
    st.sampled_from(["offset", "live", "cursor", "max_bytes", "x"]) | st.text(max_size=5),
    st.sampled_from(["-1", "now", "0" * 20, "1".zfill(20), "", "1"]) | st.text(max_size=25),
    max_size=4,
)
BODIES = st.binary(max_size=60) | st.sampled_from(
    [b"[]", b"[1,2]", b'{"a":[]}', b"null", b"[[", b'"\\u']
)
METHODS = st.sampled_from(["PUT", "POST", "GET", "HEAD", "DELETE", "OPTIONS", "PATCH"])
PROPERLY = settings(
    max_examples=examples(300),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def check_answer(response: httpx.Response) -> None:
    assert response.status_code < 500
    if response.status_code >= 400 and response.request.method != "HEAD":
        check_error(response, response.status_code)


@PROPERLY
@given(method=METHODS, headers=HEADERS, body=BODIES)
def test_any_request_gets_a_proper_answer(new_stream, method, headers, body) -> None:
    stream = new_stream(JSON, b"[1]")
    headers.pop(b"Expect", None) if method not in {"PUT", "POST"} else None
    sent = stream.client.request(method, stream.url, content=body, headers=list(headers.items()))
    check_answer(sent)
    after = stream.read()
    assert after.status_code == (404 if sent.status_code == 204 and method == "DELETE" else 200)
    if after.status_code == 200:
        assert after.json()[0] == 1


@PROPERLY
@given(headers=HEADERS, body=BODIES)
def test_any_creation_gets_a_proper_answer(absent, headers, body) -> None:
    stream = absent()
    created = stream.client.put(stream.url, content=body, headers=list(headers.items()))
    check_answer(created)
    exists = stream.head().status_code
    assert exists in ({200, 404} if created.status_code == 201 else {404})


@PROPERLY
@given(parameters=PARAMETERS)
def test_any_query_gets_a_proper_answer(new_stream, parameters) -> None:
    stream = new_stream(JSON, b"[1,2,3]", stream_closed="true")
    check_answer(stream.get(parameters))

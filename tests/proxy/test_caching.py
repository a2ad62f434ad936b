"""Nothing of the proxy is kept by caches that others share."""

import pytest

from tests.proxy.proxying import PATH, expired, id_of


@pytest.fixture
def location(proxy, upstream) -> str:
    location = proxy.created(upstream.url("/fixed", body="x"))
    proxy.frames(location)
    return location


def test_signed_reads_are_private(proxy, location) -> None:
    """On a server whose other reads are public."""
    proxy.client.put("/v1/stream/test/cached")
    assert "public" in proxy.client.get("/v1/stream/test/cached").headers["cache-control"]
    for url in (location, f"{location}&offset=-1", f"{location}&offset=-1&live=long-poll"):
        answer = proxy.client.get(url)
        assert answer.status_code == 200
        assert answer.headers["cache-control"] == "private, no-cache"
    with proxy.client.stream("GET", f"{location}&offset=-1&live=sse") as events:
        assert events.headers["cache-control"] == "private, no-cache"


def test_reads_of_services_are_private(proxy, location) -> None:
    for path in (f"{PATH}/{id_of(location)}", proxy.base_path(location)):
        answer = proxy.client.get(path, headers=proxy.service)
        assert answer.headers["cache-control"] == "private, no-cache"
        events = f"{path}?offset=-1&live=sse"
        with proxy.client.stream("GET", events, headers=proxy.service) as answer:
            assert answer.headers["cache-control"] == "private, no-cache"


def test_what_reads_say_of_caching(proxy, location, upstream) -> None:
    gone = proxy.connected()
    proxy.client.delete(gone, headers=proxy.service)
    service = proxy.service
    path = f"{PATH}/{id_of(location)}"
    tail = proxy.client.get(location).headers["stream-next-offset"]
    answers = [
        proxy.client.get(f"{location}&offset=now"),
        proxy.client.get(f"{location}&offset={tail}&live=long-poll"),
        proxy.client.get(f"{location}&offset=now&live=long-poll"),
        proxy.client.get(f"{location}&last=1"),
        proxy.client.get(location, headers={"If-None-Match": "*"}),
        proxy.client.get(expired(location)),
        proxy.client.get(f"{location}x"),
        proxy.client.get(path),
        proxy.client.get(gone),
        proxy.client.get(f"{location}&offset=x"),
        proxy.client.head(path, headers=service),
        proxy.client.head(location),
        proxy.client.delete(location),
        proxy.client.patch(f"{location}&action=abort"),
        proxy.client.patch(location),
        proxy.create(upstream.url()),
        proxy.create(upstream.url("/error")),
        proxy.append(location, upstream.url()),
        proxy.connect(),
        proxy.connect(headers={"Upstream-URL": upstream.url("/auth", status=403)}),
        proxy.client.get("/_proxy/streams", headers=service),
        proxy.client.get("/_proxy/streams/scan", headers=service),
        proxy.client.get(f"/_proxy/{id_of(location)}/bootstrap", headers=service),
        proxy.client.delete(location, headers=service),
    ]
    with proxy.client.stream("GET", f"{proxy.connected()}&offset=-1&live=sse") as events:
        answers.append(events)
    for answer in answers:
        caching = answer.headers.get("cache-control", "")
        assert "public" not in caching, (answer.request.method, str(answer.url), caching)
        if answer.request.method == "GET":
            assert {"private", "no-store", "no-cache"} & set(caching.replace(",", "").split()), (
                answer.url
            )


def test_a_client_may_ask_whether_there_is_more(proxy, upstream, location) -> None:
    answer = proxy.client.get(location)
    etag = answer.headers["etag"]
    again = proxy.client.get(location, headers={"If-None-Match": etag})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == etag
    assert again.headers["cache-control"] == "private, no-cache"
    proxy.appended(location, upstream.url("/fixed", body="more"))
    more = proxy.client.get(location, headers={"If-None-Match": etag})
    assert more.status_code == 200
    assert more.headers["etag"] != etag


def test_a_known_etag_does_not_replace_the_signature(proxy, location) -> None:
    etag = proxy.client.get(location).headers["etag"]
    for url in (f"{location}x", expired(location), location.partition("?")[0]):
        answer = proxy.client.get(url, headers={"If-None-Match": etag})
        assert answer.status_code == 401

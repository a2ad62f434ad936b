"""Subscriptions, which anybody may make here, tell nothing of proxy streams."""

from uuid import uuid4

import pytest

from tests.proxy.proxying import id_of

CONTROL = "/v1/stream/__ds/subscriptions"
JSON = {"Content-Type": "application/json"}


@pytest.fixture
def subscription(proxy):
    """The path of a subscription that does not exist yet."""
    path = f"{CONTROL}/sub-{uuid4().hex}"
    yield path
    proxy.client.delete(path)


def new_stream(client) -> str:
    path = f"events/{uuid4().hex}"
    assert client.put(f"/v1/stream/{path}", headers=JSON).status_code == 201
    return path


@pytest.mark.parametrize("pattern", ["**", "_proxy/*", "_proxy/**", "*/*"])
def test_patterns_do_not_mean_proxy_streams(proxy, upstream, subscription, pattern) -> None:
    client, wake_stream = proxy.client, new_stream(proxy.client)
    before = proxy.created(upstream.url("/fixed", body="x"))
    body = {"type": "pull-wake", "pattern": pattern, "wake_stream": wake_stream}
    assert client.put(subscription, json=body).status_code == 201
    after = proxy.created(upstream.url("/fixed", body="x"))
    for location in (before, after):
        proxy.frames(location)
        proxy.appended(location, upstream.url("/fixed", body="y"))
    # What is linked later is told of later: once this is there, those would be.
    plain = new_stream(client)
    assert client.post(f"/v1/stream/{plain}", json="x").status_code == 204
    told = client.get(subscription).json()
    claimed = client.post(f"{subscription}/claim", json={"worker": "w"})
    for text in (str(told), claimed.text, client.get(f"/v1/stream/{wake_stream}").text):
        assert id_of(before) not in text
        assert id_of(after) not in text
    if pattern in {"**", "*/*"}:
        assert plain in {each["path"] for each in told["streams"]}
    else:
        assert told["streams"] == []


def test_proxy_streams_cannot_be_named(proxy, subscription) -> None:
    client, path = proxy.client, f"_proxy/{id_of(proxy.connected())}"
    body = {"type": "pull-wake", "wake_stream": new_stream(client)}
    assert client.put(subscription, json=body | {"streams": [path]}).status_code == 400
    assert client.put(subscription, json=body | {"streams": [new_stream(client)]}).is_success
    linked = client.post(f"{subscription}/streams", json={"streams": [path]})
    assert linked.status_code == 400, linked.text
    assert "_proxy" not in client.get(subscription).text


def test_wakes_are_not_written_to_proxy_streams(proxy, subscription) -> None:
    location = proxy.connected()
    for wake_stream in (f"_proxy/{id_of(location)}", "_proxy/new"):
        body = {"type": "pull-wake", "pattern": "events/*", "wake_stream": wake_stream}
        assert proxy.client.put(subscription, json=body).status_code == 400
    assert proxy.now(location) == []
    assert "new" not in proxy.streams()

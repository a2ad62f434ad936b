"""Subscriptions over HTTP: a real server, a real receiver of webhooks, real workers."""

import base64
import hashlib
import time
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from tests.http.conftest import DEADLINE_S
from tests.server_process import ServerProcess
from tests.webhook_receiver import Received, WebhookReceiver

ALLOW = "http://127.0.0.1:*"
CONTROL = "/v1/stream/__ds"
DONE = b'{"done":true}'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that may call receivers on this machine."""
    data_dir = tmp_path_factory.mktemp("subscriptions") / "data"
    with ServerProcess(data_dir, webhooks_allow=ALLOW) as process:
        yield process


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=DEADLINE_S) as client:
        yield client


@pytest.fixture
def receiver() -> Iterator[WebhookReceiver]:
    with WebhookReceiver() as receiver:
        yield receiver


class Api:
    """One subscription, and streams in a bucket of its own."""

    def __init__(self, client: httpx.Client) -> None:
        self.client = client
        self.id = f"sub-{uuid4().hex}"
        self.bucket = f"events-{uuid4().hex}"
        self.url = f"{CONTROL}/subscriptions/{self.id}"

    def create(self, **body: Any) -> httpx.Response:
        return self.client.put(self.url, json={"pattern": f"{self.bucket}/*", **body})

    def webhook(self, receiver: WebhookReceiver, **body: Any) -> dict[str, Any]:
        created = self.create(type="webhook", webhook={"url": receiver.url}, **body)
        assert created.status_code == 201, created.text
        return created.json()

    def pull(self, **body: Any) -> str:
        wake_stream = f"{self.bucket}/wake/pool"
        self.put(wake_stream)
        created = self.create(type="pull-wake", wake_stream=wake_stream, **body)
        assert created.status_code == 201, created.text
        return wake_stream

    def put(self, path: str, *messages: Any) -> None:
        json = {"json": list(messages)} if messages else {}
        headers = {"Content-Type": "application/json"}
        assert self.client.put(f"/v1/stream/{path}", headers=headers, **json).status_code == 201

    def append(self, path: str, message: Any = "x") -> str:
        appended = self.client.post(f"/v1/stream/{path}", json=message)
        assert appended.status_code == 204, appended.text
        return appended.headers["Stream-Next-Offset"]

    def post(self, action: str, body: Any, token: str = "") -> httpx.Response:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return self.client.post(f"{self.url}/{action}", json=body, headers=headers)

    def claim(self, worker: str = "worker") -> httpx.Response:
        return self.post("claim", {"worker": worker})

    def acked(self) -> dict[str, str]:
        streams = self.client.get(self.url).json()["streams"]
        return {each["path"]: each["acked_offset"] for each in streams}

    def wait_until_acked(self, wanted: dict[str, str]) -> None:
        until(lambda: self.acked() == wanted)


@pytest.fixture
def api(client: httpx.Client) -> Iterator[Api]:
    api = Api(client)
    yield api
    client.delete(api.url)


def until(reached: Callable[[], object]) -> None:
    ends = time.monotonic() + DEADLINE_S
    while not reached():
        assert time.monotonic() < ends, "waited too long"
        time.sleep(0.02)


def spoken(wake: dict[str, Any], acks: dict[str, str], *, done: bool) -> dict[str, Any]:
    return {
        "wake_id": wake["wake_id"],
        "generation": wake["generation"],
        "acks": [{"stream": path, "offset": offset} for path, offset in acks.items()],
        "done": done,
    }


def tails(wake: dict[str, Any]) -> dict[str, str]:
    return {each["path"]: each["tail_offset"] for each in wake["streams"] if each["has_pending"]}


def verify(received: Received, jwks: dict[str, Any]) -> None:
    """Raise unless the signature is good."""
    parts = dict(part.split("=", 1) for part in received.signature.split(","))
    assert abs(time.time() - int(parts["t"])) < 60
    [key] = [key for key in jwks["keys"] if key["kid"] == parts["kid"]]
    signature, public = (
        base64.urlsafe_b64decode(text + "==") for text in (parts["ed25519"], key["x"])
    )
    signed = parts["t"].encode() + b"." + received.raw
    Ed25519PublicKey.from_public_bytes(public).verify(signature, signed)


class TestWebhooks:
    @pytest.mark.spec(
        "subscriptions 6.2-9",
        "subscriptions 6.5-1",
        "subscriptions 6.5-2",
        "subscriptions 7.1-3",
        "subscriptions 7.1-5",
    )
    def test_a_signed_wake_is_delivered_and_done(self, api: Api, client: httpx.Client) -> None:
        with WebhookReceiver(lambda _received: (200, DONE)) as receiver:
            created = api.webhook(receiver)
            assert "webhook_secret" not in created
            jwks = client.get(created["webhook"]["signing"]["jwks_url"])
            assert jwks.headers["Content-Type"] == "application/jwk-set+json"
            assert jwks.headers["Cache-Control"] == "public, max-age=300"
            path = f"{api.bucket}/a"
            api.put(path, {"event": 1})
            received = receiver.next()
            verify(received, jwks.json())
            wake = received.json
            assert wake["callback_url"] == f"{client.base_url}{api.url}/callback".replace(
                "//v1", "/v1"
            )
            api.wait_until_acked({path: wake["streams"][0]["tail_offset"]})

    @pytest.mark.spec("subscriptions 7.1-8", "subscriptions 7.1-9")
    def test_callbacks_acknowledge_and_fence(self, api: Api, receiver: WebhookReceiver) -> None:
        api.webhook(receiver)
        path = f"{api.bucket}/a"
        api.put(path, 1)
        wake = receiver.next().json
        token = wake["callback_token"]
        headers = {"Authorization": f"Bearer {token}"}
        body = spoken(wake, tails(wake), done=True)
        answer = api.client.post(wake["callback_url"], json=body, headers=headers)
        assert (answer.status_code, answer.json()) == (200, {"ok": True, "next_wake": False})
        assert api.acked() == tails(wake)
        stale = api.client.post(wake["callback_url"], json=body, headers=headers)
        assert (stale.status_code, stale.json()["error"]["code"]) == (409, "FENCED")

    @pytest.mark.spec("subscriptions 6.3-4")
    @pytest.mark.parametrize("status", [302, 404, 500])
    def test_any_other_status_is_tried_again(self, api: Api, status: int) -> None:
        answers = iter([(status, b""), (200, DONE)])
        with WebhookReceiver(lambda _received: next(answers)) as receiver:
            api.webhook(receiver)
            path = f"{api.bucket}/a"
            api.put(path, 1)
            first = receiver.next().json
            until(lambda: api.client.get(api.url).json()["status"] == "failed")
            second = receiver.next().json
            assert second["wake_id"] == first["wake_id"]
            api.wait_until_acked(tails(second))
            assert api.client.get(api.url).json()["status"] == "active"

    def test_a_receiver_that_hangs_up_or_talks_nonsense(self, api: Api) -> None:
        answers = iter([(200, b"\xff not json"), (200, b'["done"]')])
        with WebhookReceiver(lambda _received: next(answers, (200, DONE))) as receiver:
            api.webhook(receiver, lease_ttl_ms=1000)
            api.put(f"{api.bucket}/a", 1)
            generations = [receiver.next().json["generation"] for _ in range(3)]
            assert generations == [1, 2, 3]

    @pytest.mark.spec(
        "subscriptions 6.2-10",
        "subscriptions 6.2-12",
        "subscriptions 12.8-1",
        "subscriptions 12.8-3",
        "subscriptions 12.8-4",
    )
    def test_targets_are_refused_unless_they_are_allowed(self, api: Api) -> None:
        for url in ("http://10.0.0.1/hook", "http://localhost:1/", "https://169.254.169.254/"):
            refused = api.create(type="webhook", webhook={"url": url})
            assert refused.status_code == 400
            assert refused.json()["error"]["code"] == "WEBHOOK_URL_REJECTED"

    def test_the_secret_in_a_url_does_not_get_into_the_log(
        self, api: Api, server: ServerProcess
    ) -> None:
        with WebhookReceiver(lambda _received: (500, b"")) as receiver:
            api.webhook(receiver)
            api.put(f"{api.bucket}/a", 1)
            receiver.next()
        until(lambda: api.id in server.stderr())
        assert "secret=1" not in server.stderr()


class TestPullWake:
    @pytest.mark.spec(
        "subscriptions 7.2-1",
        "subscriptions 7.2-4",
        "subscriptions 7.2-6",
        "subscriptions 7.2-7",
        "subscriptions 7.2-8",
    )
    def test_claim_ack_and_release(self, api: Api) -> None:
        wake_stream = api.pull(lease_ttl_ms=5000)
        path = f"{api.bucket}/a"
        api.put(path, 1)
        until(lambda: api.client.get(f"/v1/stream/{wake_stream}").json())
        [event] = api.client.get(f"/v1/stream/{wake_stream}").json()
        assert (event["type"], event["subscription_id"], event["stream"]) == ("wake", api.id, path)
        wake = api.claim("one").json()
        busy = api.claim("two")
        assert busy.status_code == 409
        error = busy.json()["error"]
        assert (error["code"], error["current_holder"]) == ("ALREADY_CLAIMED", "one")
        assert error["generation"] == 1
        acked = api.post("ack", spoken(wake, tails(wake), done=True), wake["token"])
        assert acked.json() == {"ok": True, "next_wake": False}
        api.append(path)
        wake = api.claim().json()
        assert wake["generation"] == 2
        assert api.post("release", spoken(wake, {}, done=False), wake["token"]).status_code == 204
        events = f"/v1/stream/{wake_stream}"
        until(lambda: api.client.get(events).json()[-1]["generation"] == 3)

    @pytest.mark.spec("subscriptions 7.3-2", "subscriptions 12.9-1")
    @pytest.mark.parametrize("action", ["callback", "ack", "release"])
    def test_tokens_are_asked_for(self, api: Api, action: str) -> None:
        api.pull()
        for headers in ({}, {"Authorization": "Basic eDp5"}, {"Authorization": "Bearer"}):
            answer = api.client.post(f"{api.url}/{action}", json={}, headers=headers)
            assert answer.status_code == 401
            assert answer.json()["error"]["code"] == "TOKEN_INVALID"
            assert answer.headers["WWW-Authenticate"].startswith("Bearer")
        assert api.post(action, {}, "made.up").status_code in {400, 401}


class TestRequests:
    @pytest.mark.spec("subscriptions 6.4-1", "subscriptions 6.4-4")
    def test_streams_are_added_and_removed(self, api: Api, receiver: WebhookReceiver) -> None:
        api.webhook(receiver)
        assert api.post("streams", {"streams": ["manual/a", "manual/b"]}).status_code == 204
        assert api.acked() == {"manual/a": "-1", "manual/b": "-1"}
        assert api.client.delete(f"{api.url}/streams/manual%2Fa").status_code == 204
        assert api.client.delete(f"{api.url}/streams/manual/b").status_code == 204
        assert api.acked() == {}

    @pytest.mark.spec("subscriptions 6-1")
    def test_what_is_not_there(self, api: Api) -> None:
        for method, path in (
            ("GET", api.url),
            ("POST", f"{api.url}/claim"),
            ("POST", f"{api.url}/streams"),
            ("DELETE", f"{api.url}/streams/a"),
        ):
            body = {"worker": "w", "streams": ["a"]} if method == "POST" else None
            answer = api.client.request(method, path, json=body)
            assert answer.status_code == 404
            assert answer.json()["error"]["code"] == "SUBSCRIPTION_NOT_FOUND"
        assert api.client.delete(api.url).status_code == 204
        for path in ("", "/", "/other", "/subscriptions/", f"/subscriptions/{api.id}/other"):
            assert api.client.get(f"{CONTROL}{path}").status_code == 404

    def test_methods_and_content_types(self, api: Api) -> None:
        answer = api.client.patch(api.url)
        assert (answer.status_code, answer.headers["Allow"]) == (
            405,
            "DELETE, GET, HEAD, OPTIONS, PUT",
        )
        assert api.client.options(api.url).status_code in {200, 204}
        for headers in ({}, {"Content-Type": "text/plain"}):
            answer = api.client.put(api.url, content=b"{}", headers=headers)
            assert answer.status_code == 400
            assert answer.json()["error"]["code"] == "INVALID_REQUEST"
        large = api.client.put(
            api.url, content=b" " * 1_100_000, headers={"Content-Type": "application/json"}
        )
        assert large.status_code == 413

    @pytest.mark.spec("subscriptions 6.1-1", "subscriptions 6.3-5")
    def test_ids_of_any_kind(self, client: httpx.Client, receiver: WebhookReceiver) -> None:
        text = f"ä b%?#{uuid4().hex}"
        url = f"{CONTROL}/subscriptions/" + "".join(f"%{byte:02X}" for byte in text.encode())
        bucket = uuid4().hex
        body = {"type": "webhook", "pattern": f"{bucket}/*", "webhook": {"url": receiver.url}}
        assert client.put(url, json=body).json()["id"] == text
        headers = {"Content-Type": "application/json"}
        client.put(f"/v1/stream/{bucket}/a", content=b"[1]", headers=headers)
        wake = receiver.next().json
        assert wake["subscription_id"] == text
        headers = {"Authorization": f"Bearer {wake['callback_token']}"}
        answer = client.post(
            wake["callback_url"], json=spoken(wake, {}, done=False), headers=headers
        )
        assert answer.status_code == 200
        assert client.delete(url).status_code == 204
        for bad in ("a%2Fb", "%00", "a%0Ab", "x" * 300):
            refused = client.put(f"{CONTROL}/subscriptions/{bad}", json=body)
            assert refused.status_code == 400

    def test_lists_are_paged(self, client: httpx.Client, receiver: WebhookReceiver) -> None:
        marks = sorted(f"page-{uuid4().hex}" for _ in range(3))
        body = {"type": "webhook", "streams": ["a/1", "a/2"], "webhook": {"url": receiver.url}}
        for mark in marks:
            client.put(f"{CONTROL}/subscriptions/{mark}", json=body)
        found, after = [], ""
        while after is not None:
            page = client.get(
                f"{CONTROL}/subscriptions", params={"after": after, "limit": 2}
            ).json()
            assert len(page["subscriptions"]) <= 2
            found += [each["id"] for each in page["subscriptions"]]
            after = page["next_after"]
        assert [each for each in found if each in marks] == marks
        assert found == sorted(found)
        url = f"{CONTROL}/subscriptions/{marks[0]}"
        first = client.get(url, params={"limit": 1}).json()
        second = client.get(url, params={"limit": 1, "after": first["next_after"]}).json()
        assert [each["path"] for each in first["streams"] + second["streams"]] == ["a/1", "a/2"]
        for limit in ("0", "x", "10001"):
            assert client.get(url, params={"limit": limit}).status_code == 400
        for mark in marks:
            client.delete(f"{CONTROL}/subscriptions/{mark}")

    def test_urls_start_with_the_public_one(
        self, start_server: Callable[..., ServerProcess], receiver: WebhookReceiver
    ) -> None:
        public = "https://streams.example.com/prefix"
        server = start_server(public_url=public, webhooks_allow=ALLOW)
        with httpx.Client(base_url=server.url) as client:
            api = Api(client)
            shown = api.webhook(receiver)
            assert shown["webhook"]["signing"]["jwks_url"] == f"{public}{CONTROL}/jwks.json"
            api.put(f"{api.bucket}/a", 1)
            assert receiver.next().json["callback_url"] == f"{public}{api.url}/callback"


class TestOtherServers:
    @pytest.mark.spec("subscriptions 6.2-12", "subscriptions 12.8-3")
    def test_without_a_setting_nothing_on_this_machine_is_called(
        self, start_server: Callable[..., ServerProcess], receiver: WebhookReceiver
    ) -> None:
        with httpx.Client(base_url=start_server().url) as client:
            refused = Api(client).create(type="webhook", webhook={"url": receiver.url})
            assert refused.json()["error"]["code"] == "WEBHOOK_URL_REJECTED"

    @pytest.mark.spec("subscriptions 6.5-4", "subscriptions 6.5-8")
    def test_everything_is_there_after_a_restart(
        self, start_server: Callable[..., ServerProcess], receiver: WebhookReceiver
    ) -> None:
        server = start_server(webhooks_allow=ALLOW)
        with httpx.Client(base_url=server.url) as client:
            api = Api(client)
            jwks = client.get(f"{CONTROL}/jwks.json").json()
            api.webhook(receiver)
            path = f"{api.bucket}/a"
            api.put(path, 1)
            wake = receiver.next().json
            until(lambda: client.get(api.url).json()["lease_until"])
            shown = client.get(api.url).json()
        assert server.stop() == 0
        with httpx.Client(base_url=start_server(webhooks_allow=ALLOW).url) as client:
            api.client = client
            assert client.get(f"{CONTROL}/jwks.json").json() == jwks
            assert client.get(api.url).json().keys() == shown.keys()
            body = spoken(wake, tails(wake), done=True)
            assert api.post("callback", body, wake["callback_token"]).status_code == 200
            assert api.acked() == tails(wake)

    def test_in_memory_too(
        self, start_server: Callable[..., ServerProcess], receiver: WebhookReceiver
    ) -> None:
        server = start_server(durability="memory", webhooks_allow=ALLOW)
        with httpx.Client(base_url=server.url) as client:
            api = Api(client)
            api.webhook(receiver)
            api.put(f"{api.bucket}/a", 1)
            verify(receiver.next(), client.get(f"{CONTROL}/jwks.json").json())
        assert not server.data_dir.exists()

    def test_tokens_of_wakes_are_no_service_tokens(
        self, start_server: Callable[..., ServerProcess], tmp_path
    ) -> None:
        token = uuid4().hex
        digest = hashlib.sha256(token.encode()).hexdigest()
        tokens = tmp_path / "tokens.toml"
        tokens.write_text(f'[[token]]\nname = "all"\nsha256 = "{digest}"\nscopes = ["write:*"]\n')
        server = start_server(access_tokens_file=tokens)
        service = {"Authorization": f"Bearer {token}"}
        with httpx.Client(base_url=server.url, headers=service) as client:
            api = Api(client)
            api.pull()
            api.put(f"{api.bucket}/a", 1)
            wake = api.claim().json()
            body = spoken(wake, tails(wake), done=True)
            refused = api.post("ack", body, token)
            assert refused.json()["error"]["code"] == "TOKEN_INVALID"
            del client.headers["Authorization"]
            assert api.claim().status_code == 401
            assert client.get(f"{CONTROL}/jwks.json").status_code == 200
            assert api.post("ack", body, wake["token"]).status_code == 200

"""Subscriptions, clause by clause: what the other tests of them do not show of a real server."""

import hashlib
import json
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.http.conftest import DEADLINE_S
from tests.http.test_subscriptions import ALLOW, CONTROL, DONE, Api, spoken, tails, until, verify
from tests.server_process import ServerProcess
from tests.webhook_receiver import WebhookReceiver

KEYS_FILE = "subscription-keys.json"
# Longer than a few requests take on a busy machine, and short enough to wait for its end.
LEASE_MS = 2000
StartServer = Callable[..., ServerProcess]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of a server that may call receivers on this machine."""
    data_dir = tmp_path_factory.mktemp("subscriptions") / "data"
    with ServerProcess(data_dir, webhooks_allow=ALLOW) as server:
        with httpx.Client(base_url=server.url, timeout=DEADLINE_S) as client:
            yield client


@pytest.fixture
def api(client: httpx.Client) -> Iterator[Api]:
    api = Api(client)
    yield api
    client.delete(api.url)


@pytest.fixture
def receiver() -> Iterator[WebhookReceiver]:
    with WebhookReceiver() as receiver:
        yield receiver


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def links(api: Api) -> dict[str, str]:
    streams = api.client.get(api.url).json()["streams"]
    return {each["path"]: each["link_type"] for each in streams}


def generations(api: Api, wake_stream: str) -> list[int]:
    return [each["generation"] for each in api.client.get(f"/v1/stream/{wake_stream}").json()]


class Wakes:
    """Wakes of one subscription, as whoever was given them speaks of them."""

    def __init__(self, api: Api, action: str, receiver: WebhookReceiver) -> None:
        self.api = api
        self.action = action
        self._receiver = receiver
        self.path = f"{api.bucket}/a"
        self._wake_stream = f"{api.bucket}/wake/pool"
        if action != "callback":
            api.put(self._wake_stream)
        self.subscribe()

    def subscribe(self) -> None:
        """Create the subscription; its wake stream is there."""
        if self.action == "callback":
            self.api.webhook(self._receiver)
        else:
            created = self.api.create(type="pull-wake", wake_stream=self._wake_stream)
            assert created.status_code == 201, created.text

    def next(self) -> dict[str, Any]:
        """The wake that is pending; its token is `token`, of either type."""
        if self.action == "callback":
            wake = self._receiver.next().json
            return wake | {"token": wake["callback_token"]}
        return self.api.claim().json()

    def say(self, wake: dict[str, Any], token: str = "", **changes: Any) -> httpx.Response:
        body = spoken(wake, {self.path: wake["streams"][0]["tail_offset"]}, done=True)
        return self.api.post(self.action, body | changes, token or wake["token"])

    def finish(self, wake: dict[str, Any]) -> None:
        """Acknowledge everything: the way to do so is another one for a release."""
        action = "callback" if self.action == "callback" else "ack"
        body = spoken(wake, tails(wake), done=True)
        assert self.api.post(action, body, wake["token"]).status_code == 200


@pytest.fixture(params=["callback", "ack", "release"])
def wakes(request: pytest.FixtureRequest, api: Api, receiver: WebhookReceiver) -> Wakes:
    return Wakes(api, request.param, receiver)


class TestReserved:
    @pytest.mark.spec("subscriptions 6-1", "subscriptions 6-2")
    @pytest.mark.parametrize("path", ["", "/", "/a", "/a/b", "/subscriptions/", "/jwks.json/a"])
    def test_nothing_below_the_prefix_is_a_stream(self, client: httpx.Client, path: str) -> None:
        for method in ("PUT", "POST", "GET", "HEAD", "DELETE"):
            body = {} if method in {"GET", "HEAD", "DELETE"} else {"json": [1]}
            assert client.request(method, f"{CONTROL}{path}", **body).status_code == 404
        assert client.put(f"/v1/stream/%5F%5Fds{path}", json=[1]).status_code == 404

    @pytest.mark.spec("subscriptions 6-1", "subscriptions 6-2")
    def test_control_paths_are_no_streams_either(self, api: Api) -> None:
        api.pull()
        headers = {"Content-Type": "application/json"}
        as_a_stream = api.client.put(api.url, content=b"", headers=headers)
        assert code(as_a_stream) == (400, "INVALID_REQUEST")
        assert api.client.get(api.url, params={"offset": "-1"}).json()["id"] == api.id
        assert api.client.put(f"{CONTROL}/jwks.json", json=[1]).status_code == 405
        linked = api.post("streams", {"streams": ["__ds/a"]})
        assert code(linked) == (400, "INVALID_REQUEST")

    @pytest.mark.spec("subscriptions 6-3")
    def test_paths_in_bodies_are_where_streams_are(
        self, api: Api, receiver: WebhookReceiver
    ) -> None:
        api.webhook(receiver)
        api.put(f"{api.bucket}/a b%", "there")
        [told] = receiver.next().json["streams"]
        assert told["path"] == f"{api.bucket}/a b%"
        found = api.client.get(f"/v1/stream/{api.bucket}/a%20b%25")
        assert found.json() == ["there"]
        assert found.headers["Stream-Next-Offset"] == told["tail_offset"]


class TestCreation:
    @pytest.mark.spec("subscriptions 6.2-2")
    @pytest.mark.parametrize(
        ("asked", "shown"), [({}, 30_000), (1000, 1000), (600_000, 600_000), (999, 0), (600_001, 0)]
    )
    def test_leases(self, api: Api, asked: Any, shown: int) -> None:
        lease = {"lease_ttl_ms": asked} if asked else {}
        answer = api.create(type="pull-wake", wake_stream="w/w", **lease)
        if shown:
            assert (answer.status_code, answer.json()["lease_ttl_ms"]) == (201, shown)
        else:
            assert code(answer) == (400, "INVALID_REQUEST")

    @pytest.mark.spec("subscriptions 6.2-1", "subscriptions 6.2-3")
    @pytest.mark.parametrize(
        "body",
        [
            {"pattern": "a/*"},
            {"pattern": "a/*", "type": "push", "wake_stream": "w/w"},
            {"pattern": "a/*", "type": "webhook"},
            {"pattern": "a/*", "type": "webhook", "wake_stream": "w/w"},
            {"pattern": "a/*", "type": "pull-wake"},
            {"type": "pull-wake", "wake_stream": "w/w"},
            {"type": "pull-wake", "wake_stream": "w/w", "streams": []},
        ],
    )
    def test_what_has_to_be_there(self, api: Api, body: dict[str, Any]) -> None:
        assert code(api.client.put(api.url, json=body)) == (400, "INVALID_REQUEST")
        assert api.client.get(api.url).status_code == 404

    @pytest.mark.spec(
        "subscriptions 6.1-1",
        "subscriptions 6.2-5",
        "subscriptions 6.2-6",
        "subscriptions 6.2-7",
        "subscriptions 6.2-8",
    )
    def test_confirmed_in_any_form_and_nothing_else(self, api: Api) -> None:
        body = {"type": "pull-wake", "wake_stream": "w/w", "streams": ["a/1", "a/2"]}
        assert api.create(**body).status_code == 201
        assert api.create(**body).status_code == 200
        other_form = {"streams": ["/a/2", "a/1", "a/2"], "lease_ttl_ms": 30_000}
        assert api.create(**(body | other_form)).status_code == 200
        # Links that came later are no part of the configuration.
        assert api.post("streams", {"streams": ["a/3"]}).status_code == 204
        assert api.create(**body).status_code == 200
        for change in (
            {"streams": ["a/1"]},
            {"pattern": "other/*"},
            {"wake_stream": "w/other"},
            {"lease_ttl_ms": 30_001},
            {"description": "another"},
            {"type": "webhook", "webhook": {"url": "https://example.com/"}},
        ):
            refused = api.create(**(body | change))
            assert code(refused) == (409, "SUBSCRIPTION_ALREADY_EXISTS")

    @pytest.mark.spec(
        "subscriptions 6.1-2",
        "subscriptions 6.2-13",
        "subscriptions 6.2-14",
        "subscriptions 6.2-15",
    )
    def test_what_exists_starts_at_its_tail_and_what_comes_at_its_start(
        self, api: Api, receiver: WebhookReceiver
    ) -> None:
        old, new = f"{api.bucket}/old", f"{api.bucket}/new"
        api.put(old, 1, 2)
        tail = api.client.head(f"/v1/stream/{old}").headers["Stream-Next-Offset"]
        created = api.webhook(receiver)
        assert created["streams"] == [{"path": old, "link_type": "glob", "acked_offset": tail}]
        api.put(new)
        assert receiver.received.empty()
        api.append(new)
        [told] = [each for each in receiver.next().json["streams"] if each["has_pending"]]
        assert (told["path"], told["acked_offset"]) == (new, "-1")

    @pytest.mark.spec("subscriptions 6.2-9")
    def test_no_answer_holds_a_secret(
        self, start_server: StartServer, receiver: WebhookReceiver
    ) -> None:
        server = start_server(webhooks_allow=ALLOW)
        with httpx.Client(base_url=server.url) as client:
            api = Api(client)
            said = json.dumps(api.webhook(receiver))
            again = api.create(type="webhook", webhook={"url": receiver.url})
            assert again.status_code == 200
            for url in (api.url, f"{CONTROL}/subscriptions", f"{CONTROL}/jwks.json"):
                said += client.get(url).text
        keys = json.loads((server.data_dir / KEYS_FILE).read_text())
        for secret in (keys["token_key"], *keys["signing_keys"]):
            assert secret not in said + again.text


class TestDeletion:
    @pytest.mark.spec("subscriptions 6.3-5", "subscriptions 6.3-6", "subscriptions 6.3-7")
    def test_who_has_a_wake_is_heard_no_more(self, wakes: Wakes) -> None:
        api = wakes.api
        api.put(wakes.path, 1)
        wake = wakes.next()
        assert api.client.delete(api.url).status_code == 204
        assert code(wakes.say(wake)) == (404, "SUBSCRIPTION_NOT_FOUND")
        assert api.client.get(api.url).status_code == 404
        # Nor by another one of the same id.
        wakes.subscribe()
        before = api.acked()
        tail = api.append(wakes.path)
        assert code(wakes.say(wake)) == (401, "TOKEN_INVALID")
        assert api.acked() == before != {wakes.path: tail}


class TestMembership:
    @pytest.mark.spec("subscriptions 6.4-1", "subscriptions 6.4-2", "subscriptions 6.4-3")
    def test_streams_are_added_at_their_tail(self, api: Api, receiver: WebhookReceiver) -> None:
        api.webhook(receiver)
        path = f"manual-{uuid4().hex}/a"
        api.put(path, 1, 2)
        tail = api.client.head(f"/v1/stream/{path}").headers["Stream-Next-Offset"]
        assert api.post("streams", {"streams": [path]}).status_code == 204
        assert api.acked() == {path: tail}
        api.append(path)
        assert api.post("streams", {"streams": [path]}).status_code == 204
        assert api.acked() == {path: tail}
        [told] = receiver.next().json["streams"]
        assert (told["link_type"], told["acked_offset"]) == ("explicit", tail)

    @pytest.mark.spec(
        "subscriptions 6.1-3",
        "subscriptions 6.1-4",
        "subscriptions 6.4-4",
        "subscriptions 6.4-5",
        "subscriptions 6.4-6",
    )
    @pytest.mark.parametrize("slash", ["/", "%2F", "%2f"])
    def test_links_are_removed_and_those_of_the_pattern_stay(
        self, api: Api, receiver: WebhookReceiver, slash: str
    ) -> None:
        path, other = f"{api.bucket}/a", f"other-{uuid4().hex}/b/c"
        api.put(path, 1)
        api.webhook(receiver, streams=[path, other])
        assert links(api) == {path: "explicit", other: "explicit"}
        for _ in range(2):
            for each in (path, other):
                encoded = each.replace("/", slash)
                removed = api.client.delete(f"{api.url}/streams/{encoded}")
                assert removed.status_code == 204
            assert links(api) == {path: "glob"}
        tail = api.append(path)
        assert receiver.next().tails() == {path: tail}


class TestKeys:
    @pytest.mark.spec("subscriptions 6.5-1", "subscriptions 6.5-2", "subscriptions 6.5-7")
    def test_public_keys_and_nothing_else(self, client: httpx.Client) -> None:
        answer = client.get(f"{CONTROL}/jwks.json")
        assert answer.status_code == 200
        assert answer.headers["Content-Type"] == "application/jwk-set+json"
        assert answer.headers["Cache-Control"] == "public, max-age=300"
        [key] = answer.json()["keys"]
        assert (key["kty"], key["crv"], key["alg"]) == ("OKP", "Ed25519", "EdDSA")
        assert key["use"] == "sig"
        # "d" would be the private key.
        assert set(key) == {"kty", "crv", "kid", "use", "alg", "x"}

    @pytest.mark.spec(
        "subscriptions 6.3-2",
        "subscriptions 6.5-4",
        "subscriptions 6.5-5",
        "subscriptions 6.5-7",
        "subscriptions 6.5-8",
        "subscriptions 6.5-9",
    )
    def test_a_key_that_is_replaced_stays_published(self, start_server: StartServer) -> None:
        with WebhookReceiver(lambda _received: (200, DONE)) as receiver:
            server = start_server(webhooks_allow=ALLOW)
            with httpx.Client(base_url=server.url) as client:
                api = Api(client)
                api.webhook(receiver)
                api.put(f"{api.bucket}/a", 1)
                before = receiver.next()
                [old] = client.get(f"{CONTROL}/jwks.json").json()["keys"]
                api.wait_until_acked(before.tails())
            assert server.stop() == 0
            path = server.data_dir / KEYS_FILE
            assert path.stat().st_mode & 0o077 == 0
            keys = json.loads(path.read_text())
            fresh = urlsafe_b64encode(bytes(range(32))).decode().rstrip("=")
            keys["signing_keys"].insert(0, fresh)
            path.write_text(json.dumps(keys))
            with httpx.Client(base_url=start_server(webhooks_allow=ALLOW).url) as client:
                jwks = client.get(f"{CONTROL}/jwks.json").json()
                new, *others = jwks["keys"]
                assert others == [old]
                assert new["kid"] != old["kid"]
                api.client = client
                assert client.get(api.url).json()["webhook"]["signing"]["kid"] == new["kid"]
                api.append(f"{api.bucket}/a")
                after = receiver.next()
                assert f"kid={new['kid']}," in after.signature
                # What was signed with the old one can still be verified.
                for received in (before, after):
                    verify(received, jwks)


class TestFencing:
    @pytest.mark.spec(
        "subscriptions 7-3",
        "subscriptions 7.1-7",
        "subscriptions 7.1-9",
        "subscriptions 7.2-9",
        "subscriptions 7.3-1",
        "subscriptions 7.3-2",
        "subscriptions 7.3-3",
        "subscriptions 7.3-4",
        "subscriptions 7.3-5",
        "subscriptions 12.9-3",
    )
    def test_token_generation_and_wake_must_all_be_of_now(self, wakes: Wakes) -> None:
        api = wakes.api
        api.put(wakes.path, 1)
        old = wakes.next()
        wakes.finish(old)
        acked = api.acked()
        api.append(wakes.path)
        wake = wakes.next()
        assert (wake["generation"], old["generation"]) == (2, 1)
        assert wake["wake_id"] != old["wake_id"]
        fenced = [
            wakes.say(old),
            wakes.say(wake, old["token"]),
            wakes.say(wake, generation=1),
            wakes.say(wake, generation=3),
            wakes.say(wake, generation=None),
            wakes.say(wake, wake_id=old["wake_id"]),
            wakes.say(wake, wake_id="w_none"),
            wakes.say(wake, wake_id=None),
        ]
        for answer in fenced:
            assert code(answer) == (409, "FENCED")
            assert answer.headers["Content-Type"] == "application/json"
        payload, _, signature = wake["token"].partition(".")
        for token in (
            "x",
            payload,
            f"{payload}.",
            f"{payload}.{signature[:-4]}AAAA",
            f".{payload}",
        ):
            assert code(wakes.say(wake, token)) == (401, "TOKEN_INVALID")
        assert api.acked() == acked
        assert wakes.say(wake).status_code == (204 if wakes.action == "release" else 200)

    @pytest.mark.spec("subscriptions 7.3-2", "subscriptions 12.9-1")
    def test_tokens_travel_in_their_header_alone(self, wakes: Wakes) -> None:
        api = wakes.api
        api.put(wakes.path, 1)
        wake = wakes.next()
        assert wake["token"] not in wake.get("callback_url", "")
        body = spoken(wake, tails(wake), done=True)
        names = ("token", "callback_token", "access_token")
        url = f"{api.url}/{wakes.action}"
        for name in names:
            given = {name: wake["token"]}
            assert code(api.client.post(url, json=body | given)) == (401, "TOKEN_INVALID")
            assert code(api.client.post(url, json=body, params=given)) == (401, "TOKEN_INVALID")

    @pytest.mark.spec("subscriptions 7.1-7")
    def test_tokens_of_wakes_open_nothing_else(
        self, start_server: StartServer, receiver: WebhookReceiver, tmp_path
    ) -> None:
        token = uuid4().hex
        digest = hashlib.sha256(token.encode()).hexdigest()
        tokens = tmp_path / "tokens.toml"
        tokens.write_text(f'[[token]]\nname = "all"\nsha256 = "{digest}"\nscopes = ["write:*"]\n')
        server = start_server(access_tokens_file=tokens, webhooks_allow=ALLOW)
        service = {"Authorization": f"Bearer {token}"}
        with httpx.Client(base_url=server.url, headers=service) as client:
            api = Api(client)
            api.webhook(receiver)
            api.put(f"{api.bucket}/a", 1)
            wake = receiver.next().json
            client.headers["Authorization"] = f"Bearer {wake['callback_token']}"
            for url in (f"/v1/stream/{api.bucket}/a", api.url, f"{CONTROL}/subscriptions"):
                assert client.get(url).status_code == 401
            assert api.claim().status_code == 401
            assert client.delete(api.url).status_code == 401
            body = spoken(wake, tails(wake), done=True)
            assert client.post(wake["callback_url"], json=body).status_code == 200


class TestLeases:
    @pytest.mark.spec(
        "subscriptions 7.2-8",
        "subscriptions 7.2-9",
        "subscriptions 7.3-8",
        "subscriptions 7.3-9",
        "subscriptions 7.3-10",
    )
    def test_a_lease_that_ends_gives_the_work_to_another(self, api: Api) -> None:
        wake_stream = api.pull(lease_ttl_ms=LEASE_MS)
        path = f"{api.bucket}/a"
        api.put(path, 1)
        until(lambda: generations(api, wake_stream) == [1])
        first = api.claim("one").json()
        until(lambda: generations(api, wake_stream) == [1, 2])
        assert api.client.get(api.url).json()["holder"] is None
        second = api.claim("two").json()
        assert (second["generation"], tails(second)) == (2, tails(first))
        for action in ("ack", "release"):
            stale = api.post(action, spoken(first, tails(first), done=True), first["token"])
            assert code(stale) == (409, "FENCED")
        assert api.acked() == {path: "-1"}
        given_back = api.post("release", spoken(second, {}, done=False), second["token"])
        assert (given_back.status_code, given_back.content) == (204, b"")
        until(lambda: generations(api, wake_stream) == [1, 2, 3])

    @pytest.mark.spec("subscriptions 7.2-5", "subscriptions 7.3-9")
    def test_a_lease_that_ends_with_nothing_to_do_just_ends(self, api: Api) -> None:
        wake_stream = api.pull(lease_ttl_ms=LEASE_MS)
        path = f"{api.bucket}/a"
        api.put(path, 1)
        until(lambda: generations(api, wake_stream) == [1])
        wake = api.claim().json()
        lease = api.client.get(api.url).json()["lease_until"]
        time.sleep(0.01)
        heard = api.post("ack", spoken(wake, tails(wake), done=False), wake["token"])
        assert heard.json() == {"ok": True, "next_wake": False}
        held = api.client.get(api.url).json()
        assert held["holder"] == "worker"
        assert held["lease_until"] > lease
        until(lambda: api.client.get(api.url).json()["holder"] is None)
        stale = api.post("ack", spoken(wake, {}, done=False), wake["token"])
        assert code(stale) == (409, "FENCED")
        assert code(api.claim()) == (409, "NO_PENDING_WORK")
        assert generations(api, wake_stream) == [1]
        assert api.acked() == tails(wake)

    @pytest.mark.spec("subscriptions 7.3-7", "subscriptions 7.3-9", "subscriptions 7.3-10")
    def test_a_webhook_that_is_silent_is_called_again(
        self, api: Api, receiver: WebhookReceiver
    ) -> None:
        api.webhook(receiver, lease_ttl_ms=LEASE_MS)
        api.put(f"{api.bucket}/a", 1)
        first = receiver.next().json
        heard = api.post("callback", spoken(first, {}, done=False), first["callback_token"])
        assert heard.status_code == 200
        second = receiver.next().json
        assert second["generation"] == 2
        stale = api.post(
            "callback", spoken(first, tails(first), done=True), first["callback_token"]
        )
        assert code(stale) == (409, "FENCED")


class TestWork:
    @pytest.mark.spec("subscriptions 7-4", "subscriptions 7.2-3", "subscriptions 7.2-6")
    def test_what_is_acknowledged_is_not_read_again(self, api: Api) -> None:
        api.pull()
        path = f"{api.bucket}/a"
        api.put(path)
        middle, last = api.append(path, "first"), api.append(path, "second")
        wake = api.claim().json()
        assert set(wake) == {"wake_id", "generation", "token", "streams", "lease_ttl_ms"}
        answer = api.post("ack", spoken(wake, {path: middle}, done=True), wake["token"])
        assert answer.json() == {"ok": True, "next_wake": True}
        [told] = [each for each in api.claim().json()["streams"] if each["has_pending"]]
        assert (told["acked_offset"], told["tail_offset"]) == (middle, last)
        rest = api.client.get(f"/v1/stream/{path}", params={"offset": told["acked_offset"]})
        assert rest.json() == ["second"]

    @pytest.mark.spec("subscriptions 7-1", "subscriptions 7-2", "subscriptions 7.1-6")
    def test_one_wake_at_a_time_and_another_for_what_came_meanwhile(self, api: Api) -> None:
        with WebhookReceiver() as receiver:
            api.webhook(receiver)
            path = f"{api.bucket}/a"
            api.put(path, 1)
            first = receiver.next().json
            tail = api.append(path)
            api.put(f"{api.bucket}/b", 1)
            assert receiver.received.empty()
            body = spoken(first, tails(first), done=True)
            said = api.post("callback", body, first["callback_token"])
            assert said.json() == {"ok": True, "next_wake": True}
            second = receiver.next().json
            assert second["generation"] == first["generation"] + 1
            assert second["wake_id"] != first["wake_id"]
            assert tails(second).keys() == {path, f"{api.bucket}/b"}
            assert tails(second)[path] == tail

    @pytest.mark.spec("subscriptions 7.2-1", "subscriptions 7.2-2")
    def test_the_wake_stream_is_not_made_by_the_server(self, api: Api) -> None:
        wake_stream = f"{api.bucket}/wake/pool"
        assert api.create(type="pull-wake", wake_stream=wake_stream).status_code == 201
        api.put(f"{api.bucket}/a", 1)
        assert api.client.head(f"/v1/stream/{wake_stream}").status_code == 404
        api.put(wake_stream)
        until(lambda: api.client.get(f"/v1/stream/{wake_stream}").json())
        [event] = api.client.get(f"/v1/stream/{wake_stream}").json()
        assert set(event) == {"type", "subscription_id", "stream", "generation", "ts"}


class TestDrafts:
    @pytest.mark.spec("subscriptions 7.4-1", "subscriptions 7.4-2")
    def test_drafts_are_neither_there_nor_announced(self, api: Api) -> None:
        wanted = {"language": "cel", "expression": "event.type == 'ready'"}
        refused = api.create(type="pull-wake", wake_stream="w/w", filter=wanted)
        assert code(refused) == (400, "INVALID_REQUEST")
        assert api.create(type="pull-wake", wake_stream="w/w").status_code == 201
        for method in ("PUT", "GET", "DELETE"):
            assert api.client.request(method, f"{CONTROL}/schedules/a").status_code == 404
        described = api.client.get("/openapi.json").json()
        assert not [path for path in described["paths"] if "schedule" in path]
        assert "filter" not in api.client.get(api.url).json()

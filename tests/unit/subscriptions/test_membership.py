"""Which streams are linked: by pattern, by name, by both; and what a request may say."""

import json

import pytest

from holdfast.errors import SubscriptionError
from holdfast.subscriptions import bodies
from holdfast.subscriptions.paths import check_subscription_id, name_of, path_of
from tests.unit.subscriptions.harness import Harness, tails


@pytest.fixture
def harness():
    return Harness()


def kinds(harness):
    return {each["path"]: each["link_type"] for each in harness.show()["streams"]}


class TestExplicit:
    def test_streams_are_linked_at_their_tail_or_before_the_first(self, harness):
        harness.create_stream("manual/a", 1)
        harness.create(type="webhook", streams=["manual/a", "/manual/b"])
        assert harness.acked() == {"manual/a": harness.tail("manual/a"), "manual/b": "-1"}
        harness.create_stream("manual/b", 1)
        assert tails(harness.sent) == {"manual/b": harness.tail("manual/b")}

    @pytest.mark.spec(
        "subscriptions 6.4-1", "subscriptions 6.4-3", "subscriptions 6.4-4", "subscriptions 6.4-5"
    )
    def test_added_and_removed(self, harness):
        harness.create(type="webhook", streams=["manual/a"])
        assert harness.do("add_streams", ("manual/b",)).status == 204
        assert harness.do("add_streams", ("manual/b",)).status == 204
        assert kinds(harness) == {"manual/a": "explicit", "manual/b": "explicit"}
        assert harness.do("remove_stream", "manual/b").status == 204
        assert harness.do("remove_stream", "manual/b").status == 204
        assert kinds(harness) == {"manual/a": "explicit"}
        harness.create_stream("manual/b", 1)
        assert harness.courier.under_way == []

    @pytest.mark.spec("subscriptions 6.4-3")
    def test_adding_does_not_move_what_is_acknowledged(self, harness):
        harness.webhook()
        harness.create_stream("events/a", 1)
        harness.do("add_streams", ("events/a",))
        assert harness.acked() == {"events/a": "-1"}

    @pytest.mark.spec("subscriptions 6.1-3", "subscriptions 6.1-4", "subscriptions 6.4-6")
    def test_explicit_takes_precedence_and_the_pattern_remains(self, harness):
        harness.create_stream("events/a", 1)
        harness.webhook(streams=["events/a"])
        assert kinds(harness) == {"events/a": "explicit"}
        harness.do("remove_stream", "events/a")
        assert kinds(harness) == {"events/a": "glob"}
        harness.append("events/a")
        assert tails(harness.sent) == {"events/a": harness.tail("events/a")}

    def test_removing_the_last_pending_stream_withdraws_the_offer(self, harness):
        harness.create_stream("wake/pool")
        harness.create(type="pull-wake", streams=["manual/a", "manual/b"], wake_stream="wake/pool")
        harness.create_stream("manual/a", 1)
        harness.do("remove_stream", "manual/a")
        harness.create_stream("manual/b", 1)
        assert [each["generation"] for each in harness.events("wake/pool")] == [1, 2]

    def test_the_wake_stream_cannot_be_linked(self, harness):
        with pytest.raises(SubscriptionError):
            harness.config(type="pull-wake", streams=["wake/pool"], wake_stream="wake/pool")
        harness.pull()
        assert harness.do("add_streams", ("wake/pool",)).status == 400

    def test_default_bucket_streams_have_short_paths(self, harness):
        harness.create(type="webhook", pattern="*", streams=["_default/named"])
        harness.create_stream("short", 1)
        assert kinds(harness) == {"named": "explicit", "short": "glob"}


class TestGone:
    @pytest.mark.parametrize("streams", [[], ["events/a"]])
    def test_deleted_streams_lose_their_links(self, harness, streams):
        harness.webhook(streams=streams)
        harness.create_stream("events/a", 1)
        harness.answer(done=True)
        harness.delete_stream("events/a")
        assert harness.acked() == {}
        assert list(harness.engine.shard.documents.items("link/")) == []

    def test_a_stream_created_anew_starts_from_its_beginning(self, harness):
        harness.webhook()
        harness.create_stream("events/a", 1, 2, 3)
        harness.answer(done=True)
        harness.delete_stream("events/a")
        harness.create_stream("events/a", 1)
        assert harness.sent["streams"][0]["acked_offset"] == "-1"

    def test_expired_streams_lose_their_links(self, harness):
        harness.webhook()
        harness.engine.create("events/a", "application/json", body=b"1", ttl_s=5)
        harness.engine.commit()
        harness.answer(done=True)
        assert set(harness.acked()) == {"events/a"}
        harness.advance(10)
        assert harness.acked() == {}


class TestCreation:
    @pytest.mark.spec("subscriptions 6.2-5", "subscriptions 6.2-6", "subscriptions 6.2-8")
    def test_the_same_configuration_is_confirmed(self, harness):
        first = harness.create(type="webhook", pattern="/events/*", streams=["b", "a", "a"])
        again = harness.create(type="webhook", pattern="events/*", streams=["a", "b"])
        assert (first.status, again.status) == (201, 200)
        assert first.json == again.json

    @pytest.mark.spec("subscriptions 6.2-7", "subscriptions 6.2-8")
    @pytest.mark.parametrize(
        "change",
        [
            {"pattern": "other/*"},
            {"streams": ["a"]},
            {"webhook": {"url": "https://other.example/"}},
            {"lease_ttl_ms": 2000},
            {"description": "another"},
            {"type": "pull-wake", "wake_stream": "wake/pool"},
        ],
    )
    def test_another_one_is_a_conflict(self, harness, change):
        harness.webhook()
        said = harness.create(**{"type": "webhook", "pattern": "events/*", **change})
        assert (said.status, said.code) == (409, "SUBSCRIPTION_ALREADY_EXISTS")

    @pytest.mark.spec("subscriptions 6.3-1", "subscriptions 6.3-2")
    def test_what_is_shown(self, harness):
        shown = harness.webhook(description="why").json
        signing = shown["webhook"].pop("signing")
        assert signing["alg"] == "ed25519"
        assert signing["jwks_url"].endswith("/v1/stream/__ds/jwks.json")
        assert shown == {
            "id": "sub",
            "subscription_id": "sub",
            "type": "webhook",
            "pattern": "events/*",
            "webhook": {"url": "https://receiver.example/hook"},
            "wake_stream": None,
            "lease_ttl_ms": 30000,
            "created_at": "2027-01-15T08:00:00.000Z",
            "status": "active",
            "description": "why",
            "generation": 0,
            "links": 0,
            "pending": 0,
            "holder": None,
            "lease_until": None,
            "next_attempt_at": None,
            "streams": [],
            "next_after": None,
        }

    @pytest.mark.spec("subscriptions 6.2-10", "subscriptions 6.2-11", "subscriptions 6.2-12")
    @pytest.mark.parametrize(
        "url", ["http://10.0.0.1/hook", "http://receiver.example/", "https://127.0.0.1/", "x"]
    )
    def test_unsafe_webhooks_are_refused(self, harness, url):
        said = harness.webhook(webhook={"url": url})
        assert (said.status, said.code) == (400, "WEBHOOK_URL_REJECTED")

    def test_there_are_limits(self):
        harness = Harness(subscriptions_max=1, links_max=2)
        for index in range(3):
            harness.create_stream(f"events/{index}", 1)
        assert harness.webhook().code == "INVALID_REQUEST"
        assert harness.webhook("other/*").status == 201
        assert harness.create("second", type="webhook", pattern="a/*").code == "quota_exceeded"
        with pytest.raises(SubscriptionError):
            harness.config(type="webhook", streams=["a", "b", "c"])

    def test_pages(self, harness):
        for index in range(5):
            harness.create_stream(f"events/{index}", 1)
        harness.webhook()
        first = harness.do("show", "", 2).json
        assert [each["path"] for each in first["streams"]] == ["events/0", "events/1"]
        second = harness.do("show", name_of(first["next_after"]), 3).json
        assert [each["path"] for each in second["streams"]] == ["events/2", "events/3", "events/4"]
        assert second["next_after"] is None
        for name in ("a", "b", "c"):
            harness.create(name, type="webhook", pattern="x/*")
        page = json.loads(harness.service.listing("a", 2).body)
        assert [each["id"] for each in page["subscriptions"]] == ["b", "c"]
        assert page["next_after"] == "c"


class TestBodies:
    @pytest.mark.spec(
        "subscriptions 6.2-1", "subscriptions 6.2-2", "subscriptions 6.2-3", "subscriptions 7.4-2"
    )
    @pytest.mark.parametrize(
        "body",
        [
            {},
            {"type": "other", "pattern": "a"},
            {"type": "webhook", "pattern": "a"},
            {"type": "webhook", "pattern": "a", "webhook": {}},
            {"type": "pull-wake", "pattern": "a"},
            {"type": "pull-wake", "wake_stream": "w"},
            {"type": "pull-wake", "wake_stream": "w", "streams": []},
            {"type": "pull-wake", "wake_stream": "w", "streams": [1]},
            {"type": "pull-wake", "wake_stream": "w", "streams": [""]},
            {"type": "pull-wake", "wake_stream": "w", "streams": ["__ds/x"]},
            {"type": "pull-wake", "wake_stream": "w", "pattern": "a*"},
            {"type": "pull-wake", "wake_stream": "w", "pattern": "a", "lease_ttl_ms": 999},
            {"type": "pull-wake", "wake_stream": "w", "pattern": "a", "lease_ttl_ms": 600_001},
            {"type": "pull-wake", "wake_stream": "w", "pattern": "a", "lease_ttl_ms": 1.5},
            {"type": "pull-wake", "wake_stream": "w", "pattern": "a", "filter": {}},
            {"type": "pull-wake", "wake_stream": "w", "pattern": "a", "unknown": 1},
        ],
        ids=str,
    )
    def test_malformed_creations(self, body):
        with pytest.raises(SubscriptionError) as caught:
            bodies.parse_create(json.dumps(body).encode(), lease_ttl_ms=30_000, links_max=10)
        assert caught.value.status == 400

    def test_no_filter_is_no_filter(self):
        body = {"type": "pull-wake", "wake_stream": "w", "pattern": "a", "filter": None}
        bodies.parse_create(json.dumps(body).encode(), lease_ttl_ms=30_000, links_max=10)

    @pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff", b'{"worker":""}', b"[" * 10_000])
    def test_malformed_claims(self, body):
        with pytest.raises(SubscriptionError):
            bodies.parse_claim(body)

    @pytest.mark.parametrize("text", ["", "a/b", "x" * 257, "a\nb"])
    def test_ids_that_are_none(self, text):
        with pytest.raises(SubscriptionError):
            check_subscription_id(text)

    @pytest.mark.parametrize(
        ("path", "name", "shown"),
        [
            ("a", "_default/a", "a"),
            ("/a/b", "a/b", "a/b"),
            ("_default/a", "_default/a", "a"),
            ("_default/a/b", "_default/a/b", "_default/a/b"),
            ("a/100%", "a/100%", "a/100%"),
        ],
    )
    def test_paths_and_names(self, path, name, shown):
        assert name_of(path) == name
        assert path_of(name) == shown

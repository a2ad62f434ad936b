"""Subscriptions driven by hand: the test says what time it is and what log and receivers answer."""

import json

from holdfast.errors import HoldfastError
from holdfast.net.targets import TargetPolicy
from holdfast.settings import WebhookSettings
from holdfast.subscriptions import bodies
from holdfast.subscriptions.delivery import DeliveryResult
from holdfast.subscriptions.keys import KeyStore, WakeTokens, WebhookSigner
from holdfast.subscriptions.service import SubscriptionResponse, Subscriptions
from holdfast.testing import FakeClock
from tests.unit.engine.driver import Driver, reply

JSON = "application/json"
BASE_URL = "http://holdfast.example"
WEBHOOK = {"url": "https://receiver.example/hook"}
SUB = "sub"


class HandCourier:
    """Keeps webhooks until the test answers them."""

    def __init__(self):
        # (body, done) of what was sent and has no answer yet.
        self.under_way = []
        self.stopped = False

    def submit(self, prepare, done):
        outgoing = prepare()
        if outgoing is not None:
            self.under_way.append((json.loads(outgoing.body), done))

    def stop(self):
        self.stopped = True
        self.under_way.clear()

    async def close(self):
        pass


class Said:
    """What a request to subscriptions was answered."""

    def __init__(self):
        self.outcomes = []

    @property
    def answered(self):
        assert len(self.outcomes) <= 1, "a request is answered once"
        return bool(self.outcomes)

    @property
    def status(self):
        assert self.answered, "not answered yet"
        return self.outcomes[0].status

    @property
    def code(self):
        outcome = self.outcomes[0]
        return outcome.code if isinstance(outcome, HoldfastError) else None

    @property
    def json(self):
        assert isinstance(self.outcomes[0], SubscriptionResponse), self.outcomes
        return json.loads(self.outcomes[0].body)


class Harness:
    """A shard, its subscriptions, and everything they talk to."""

    def __init__(self, engine=None, *, keys=None, **settings):
        self.engine = engine or Driver(clock=FakeClock())
        self.clock = self.engine.clock
        self.keys = keys or KeyStore(None, self.clock)
        self.courier = HandCourier()
        self.settings = WebhookSettings(**settings)
        signer = WebhookSigner(self.keys, self.clock)
        self.tokens = WakeTokens(self.keys, self.clock)
        self.service = Subscriptions(
            self.engine.shard,
            self.clock,
            self.settings,
            TargetPolicy(),
            self.courier,
            signer,
            self.tokens,
        )
        self.service.recover()
        self.service.start()

    def restart(self):
        """Another server on what the log kept, as after kill -9."""
        self.service.stop()
        return Harness(self.engine.restart(), keys=self.keys)

    # Streams.

    def create_stream(self, path, *messages):
        bucket = path if "/" in path else f"_default/{path}"
        body = json.dumps(messages).encode() if messages else b""
        self.engine.committed(self.engine.create(bucket, JSON, body=body))

    def append(self, path, message="x"):
        name = path if "/" in path else f"_default/{path}"
        ask = self.engine.append(json.dumps(message).encode(), name, JSON)
        self.engine.committed(ask)
        return self.tail(path)

    def delete_stream(self, path):
        self.engine.committed(self.engine.delete(path if "/" in path else f"_default/{path}"))

    def tail(self, path):
        name = path if "/" in path else f"_default/{path}"
        return f"{self.engine.shard.find(name).tail:020d}"

    def events(self, path):
        """What is on a wake stream."""
        name = path if "/" in path else f"_default/{path}"
        data = self.engine.read(name)
        return [json.loads(line) for line in data.split(b"\x1e") if line]

    # Requests.

    def ask(self, method, *args, subscription=SUB):
        """Ask without committing anything."""
        said = Said()
        call = getattr(self.service, method)
        self.service.respond(subscription, reply, said, lambda: call(subscription, *args))
        return said

    def do(self, method, *args, subscription=SUB):
        said = self.ask(method, *args, subscription=subscription)
        self.engine.commit()
        return said

    def config(self, **body):
        if body["type"] == "webhook":
            body = {"webhook": WEBHOOK, **body}
        return bodies.parse_create(
            json.dumps(body).encode(), lease_ttl_ms=30_000, links_max=self.settings.links_max
        )

    def create(self, subscription=SUB, **body):
        return self.do("create", self.config(**body), BASE_URL, subscription=subscription)

    def webhook(self, pattern="events/*", **body):
        return self.create(type="webhook", pattern=pattern, **body)

    def pull(self, pattern="events/*", wake_stream="wake/pool", **body):
        return self.create(type="pull-wake", pattern=pattern, wake_stream=wake_stream, **body)

    def show(self, subscription=SUB):
        return self.do("show", "", 1000, subscription=subscription).json

    def acked(self, subscription=SUB):
        return {each["path"]: each["acked_offset"] for each in self.show(subscription)["streams"]}

    def claim(self, worker="worker", subscription=SUB):
        return self.do("claim", worker, subscription=subscription)

    def speak(self, method, wake, acks=(), *, done=False, subscription=SUB, **changes):
        """Ack, release or call back about a wake."""
        body = {
            "wake_id": wake["wake_id"],
            "generation": wake["generation"],
            "acks": [{"stream": path, "offset": offset} for path, offset in dict(acks).items()],
            "done": done,
            **changes,
        }
        asked = bodies.parse_wake(json.dumps(body).encode(), links_max=self.settings.links_max)
        token = wake.get("token") or wake.get("callback_token")
        return self.do(method, token, asked, subscription=subscription)

    # Webhooks.

    @property
    def sent(self):
        """The one webhook that is under way."""
        assert len(self.courier.under_way) == 1, self.courier.under_way
        return self.courier.under_way[0][0]

    def answer(self, *, done=False, problem=""):
        """SubscriptionResponse the oldest webhook; what it said is returned."""
        body, take = self.courier.under_way.pop(0)
        take(DeliveryResult(problem, done))
        self.engine.commit()
        return body

    def advance(self, seconds):
        self.clock.advance(seconds)
        self.engine.commit()


def tails(wake):
    """What a wake says of the streams with something new."""
    return {each["path"]: each["tail_offset"] for each in wake["streams"] if each["has_pending"]}

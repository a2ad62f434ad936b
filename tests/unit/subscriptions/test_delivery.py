"""Deliveries: so many at a time, each made when it is sent, none after the end."""

import asyncio

import pytest

from holdfast.errors import OutboundError, OutboundRefusedError
from holdfast.net.outbound import OutboundResponse
from holdfast.net.targets import TargetPolicy
from holdfast.subscriptions.delivery import DeliveryResult, HttpWebhookSender, WebhookRequest
from holdfast.subscriptions.keys import KeyStore, WebhookSigner
from holdfast.testing import FakeClock

URL = "https://receiver.example/hook"


class HandOutbound:
    """Calls that end when the test says how."""

    def __init__(self):
        self.calls = []

    async def request(self, method, url, headers, body=b"", *, timeout_s, bytes_max):
        outcome = asyncio.get_running_loop().create_future()
        self.calls.append((method, url, headers, body, timeout_s, outcome))
        return await outcome

    async def aclose(self):
        self.calls = None


def make_courier(concurrent_max=2):
    clock = FakeClock()
    signer = WebhookSigner(KeyStore(None, clock), clock)
    courier = HttpWebhookSender(TargetPolicy(), signer, concurrent_max=concurrent_max)
    courier._outbound = HandOutbound()
    return courier, courier._outbound


async def rounds():
    """Let everything run that can."""
    for _ in range(10):
        await asyncio.sleep(0)


def outgoing(body=b"{}"):
    return WebhookRequest(URL, body, 5.0)


def receipt_of(outcome):
    """What becomes of one delivery."""

    async def scenario():
        courier, outbound = make_courier()
        receipts = []
        courier.submit(lambda: outgoing(b'{"a":1}'), receipts.append)
        await rounds()
        [(method, url, headers, body, timeout_s, future)] = outbound.calls
        assert (method, url, body, timeout_s) == ("POST", URL, b'{"a":1}', 5.0)
        assert headers["Content-Type"] == "application/json"
        assert headers["Webhook-Signature"].startswith("t=1800000000,kid=ds_")
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
        await rounds()
        [receipt] = receipts
        return receipt

    return asyncio.run(scenario())


@pytest.mark.spec("subscriptions 7.1-1", "subscriptions 7.1-5")
@pytest.mark.parametrize(
    ("status", "body", "receipt"),
    [
        (200, b'{"done":true}', DeliveryResult("", True)),
        (204, b"", DeliveryResult("", False)),
        (202, b'{"done":false}', DeliveryResult("", False)),
        (200, b'{"done":1}', DeliveryResult("", False)),
        (200, b"[" * 5000, DeliveryResult("", False)),
        (200, b"\xff", DeliveryResult("", False)),
    ],
)
def test_the_answer_says_whether_it_is_done(status, body, receipt):
    assert receipt_of(OutboundResponse(status, {}, body)) == receipt


@pytest.mark.parametrize(
    "outcome",
    [
        OutboundResponse(301, {}, b'{"done":true}'),
        OutboundResponse(410, {}, b""),
        OutboundResponse(500, {}, b'{"done":true}'),
        OutboundError("It did not answer."),
        OutboundRefusedError("It is not public."),
        RuntimeError("a defect"),
    ],
)
def test_everything_else_is_a_problem(outcome):
    receipt = receipt_of(outcome)
    assert receipt.problem
    assert not receipt.done


def test_so_many_at_a_time_and_the_next_is_made_when_its_turn_comes():
    async def scenario():
        courier, outbound = make_courier(concurrent_max=2)
        made, receipts = [], []

        def prepare(number):
            made.append(number)
            return None if number == 2 else outgoing(b"%d" % number)

        for number in range(5):
            courier.submit(lambda number=number: prepare(number), receipts.append)
        await rounds()
        assert made == [0, 1]
        outbound.calls[0][-1].set_result(OutboundResponse(200, {}, b""))
        await rounds()
        assert made == [0, 1, 2, 3]
        assert [call[3] for call in outbound.calls] == [b"0", b"1", b"3"]
        assert len(receipts) == 1
        courier.stop()
        await courier.close()

    asyncio.run(scenario())


def test_after_the_end_nothing_is_sent_and_nobody_is_told():
    async def scenario():
        courier, outbound = make_courier(concurrent_max=1)
        receipts = []
        for _ in range(3):
            courier.submit(outgoing, receipts.append)
        await rounds()
        calls = outbound.calls
        courier.stop()
        await courier.close()
        await rounds()
        assert len(calls) == 1
        assert receipts == []

    asyncio.run(scenario())

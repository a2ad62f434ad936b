"""Answers to ASGI requests: each is given once, and counted once."""

import asyncio

import pytest

from holdfast.http.asgi import AsgiSlot
from tests.unit.http.apps import Served


@pytest.fixture
def app():
    return Served().app


def delivered(slot):
    """All messages that the host gets."""
    messages = []

    async def send(message):
        messages.append(message)

    asyncio.run(slot.deliver(send))
    return messages


@pytest.mark.parametrize("how", ["respond", "begin"])
@pytest.mark.parametrize("given", ["complete", "abandoned"])
def test_a_second_answer_is_ignored(app, how, given):
    slot = AsgiSlot(app, is_head=False)
    slot.route = "proxy"
    if given == "complete":
        slot.respond(201, b"X-A: b\r\n", b"one")
    else:
        slot.abandon()
    getattr(slot, how)(502, b"")
    slot.write(b"two")
    slot.end()
    messages = delivered(slot)
    if given == "abandoned":
        assert messages == []
        assert not app.counters.requests
        return
    assert [each.get("status") for each in messages] == [201, None, None]
    assert b"".join(each.get("body", b"") for each in messages) == b"one"
    assert dict(app.counters.requests) == {("proxy", 201): 1}

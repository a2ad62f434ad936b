"""Forks under names that were taken a moment ago: where they start is found out all the same."""

import asyncio

import pytest

from tests.unit.engine.tiered import Tiered
from tests.unit.http.apps import Served

JSON = "application/json"
SOURCE = "/v1/stream/b/source"
FORK = "/v1/stream/b/fork"
# Three messages of eight bytes each, the separators included.
MESSAGES = b'[{"a":1},{"b":2},{"c":3}]'


@pytest.fixture(params=["hot", "cold"])
def served(request, tmp_path):
    engine = Tiered(tmp_path)
    served = Served(engine)
    served.ask("PUT", SOURCE, MESSAGES, content_type=JSON)
    engine.commit()
    if request.param == "cold":
        engine.flush()
    yield served
    engine.close()


def deleted(served):
    """The name is free once its deletion is durable, which it is not yet."""
    served.ask("PUT", FORK, content_type=JSON)
    served.engine.commit()
    served.ask("DELETE", FORK)


def expired(served):
    """The name is free, and no sweep has come by."""
    deadline_ms = served.clock.now_ms() + 5
    served.engine.committed(
        served.engine.create("b/fork", JSON, expires_at_ms=deadline_ms, body=b"1")
    )
    served.clock.advance(0.01)
    assert served.shard.state.find("b/fork") is not None


async def fork(served, offset, **more):
    asked = served.ask(
        "PUT", FORK, stream_forked_from=SOURCE, stream_fork_offset=f"{offset:020d}", **more
    )
    await served.settle()
    served.engine.commit()
    return asked


@pytest.mark.parametrize("takes", [deleted, expired])
class TestNameThatIsFree:
    def test_offset_inside_a_message_is_400(self, served, takes):
        takes(served)
        asked = asyncio.run(fork(served, 3))
        assert (asked.status, asked.code) == (400, "invalid_offset")
        assert not served.shard.exists("b/fork")

    def test_sub_offset_counts(self, served, takes):
        takes(served)
        asked = asyncio.run(fork(served, 0, stream_fork_sub_offset="2"))
        assert asked.status == 201
        assert asked.fields["stream-next-offset"] == f"{16:020d}"
        assert served.engine.content("b/fork") == b'{"a":1}\x1e{"b":2}\x1e'

    def test_offset_between_messages(self, served, takes):
        takes(served)
        assert asyncio.run(fork(served, 8)).status == 201
        served.engine.append(b'{"x":9}', name="b/fork", media=JSON)
        served.engine.commit()
        assert served.engine.content("b/fork") == b'{"a":1}\x1e{"x":9}\x1e'


def test_source_that_is_replaced_while_the_offset_is_looked_up(served):
    """What was a boundary of the old one need not be one of the new one."""
    served.engine.flush()

    async def replaced_meanwhile():
        asked = served.ask("PUT", FORK, stream_forked_from=SOURCE, stream_fork_offset=f"{8:020d}")
        # The packs' index was asked for, and comes with the clock's next turn.
        await asyncio.sleep(0)
        served.engine.delete("b/source")
        served.engine.create("b/source", JSON, body=b'["a much longer message"]')
        served.engine.commit()
        await served.settle()
        return asked

    asked = asyncio.run(replaced_meanwhile())
    assert (asked.status, asked.code) == (503, "unavailable")
    assert asked.fields["retry-after"]
    assert not served.shard.exists("b/fork")


def test_name_that_is_taken_again_meanwhile_needs_no_offset(served):
    """A fork that is there already is confirmed, whatever has become of its source."""

    async def twice():
        first = await fork(served, 8)
        served.engine.committed(served.engine.delete("b/source"))
        return first, await fork(served, 8)

    first, again = asyncio.run(twice())
    assert (first.status, again.status) == (201, 200)

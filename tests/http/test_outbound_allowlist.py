"""The allowlist over real connections: the address that was checked is the one connected to."""

import asyncio

import pytest

from holdfast.errors import OutboundRefusedError
from holdfast.net.targets import Allowlist
from tests.http.calls_out import calling, collected, run
from tests.http.loopback import answer, serving

PUBLIC = "93.184.215.14"


class Internet(asyncio.SelectorEventLoop):
    """A loop on which every address leads to this machine, and that notes which was asked for."""

    def __init__(self):
        super().__init__()
        self.connected = []

    async def create_connection(self, protocol_factory, host=None, port=None, **options):
        self.connected.append(host)
        return await super().create_connection(protocol_factory, "127.0.0.1", port, **options)


def moving(*answers):
    """A name that has another address each time it is asked for."""
    left = list(answers)

    async def resolve(_host, _port):
        return [left.pop(0)]

    resolve.left = left
    return resolve


async def once(_head, _body, writer):
    writer.write(answer("200 OK", b"hello", "Connection: close"))
    writer.close()


@pytest.mark.spec("proxy 13.1-3", "proxy 13.1-4")
@pytest.mark.parametrize(
    "moved", ["127.0.0.1", "::1", "10.0.0.1", "169.254.169.254", "::ffff:127.0.0.1", "0.0.0.0"]
)
def test_a_name_that_moves_inside_is_not_followed(moved):
    async def scenario():
        connected = asyncio.get_running_loop().connected
        async with serving(once) as server:
            resolve = moving(PUBLIC, moved, PUBLIC)
            policy = Allowlist([f"http://api.example:{server.port}"])
            url = f"http://api.example:{server.port}/"
            async with calling(policy, resolve=resolve) as outbound:
                # Asked for once: the answer that was checked is the one that is used.
                assert (await collected(outbound, "GET", url))[0] == 200
                assert connected == [PUBLIC]
                assert resolve.left == [moved, PUBLIC]
                with pytest.raises(OutboundRefusedError, match="address"):
                    await collected(outbound, "GET", url)
                assert connected == [PUBLIC]
                assert (await collected(outbound, "GET", url))[0] == 200
                assert connected == [PUBLIC, PUBLIC]
            assert f"\r\nHost: api.example:{server.port}\r\n".encode() in server.heads[0]

    run(scenario(), loop_factory=Internet)


@pytest.mark.parametrize("range_too", [True, False])
def test_a_name_inside_needs_its_range_as_well(range_too):
    async def scenario():
        async with serving(once) as server:
            patterns = [f"http://llm.internal.example:{server.port}/v1/*"]
            if range_too:
                patterns.append(f"http://127.0.0.0/8:{server.port}")
            url = f"http://llm.internal.example:{server.port}/v1/x"
            resolve = moving("127.0.0.1")
            async with calling(Allowlist(patterns), resolve=resolve) as outbound:
                if range_too:
                    assert (await collected(outbound, "GET", url))[0] == 200
                else:
                    with pytest.raises(OutboundRefusedError, match="loopback"):
                        await collected(outbound, "GET", url)
            assert server.connections == int(range_too)

    run(scenario())


def test_localhost_is_what_the_system_says_it_is():
    async def scenario():
        async with serving(once) as server:
            policy = Allowlist([f"http://localhost:{server.port}"])
            async with calling(policy) as outbound:
                url = f"http://LOCALHOST.:{server.port}/"
                assert (await collected(outbound, "GET", url))[0] == 200

    run(scenario())


@pytest.mark.spec("proxy 7-1", "proxy 13.1-1")
def test_what_is_not_named_is_neither_resolved_nor_connected_to():
    async def scenario():
        resolve = moving(PUBLIC)
        async with serving(once) as server:
            policy = Allowlist([f"http://127.0.0.1:{server.port}/v1/*"])
            async with calling(policy, resolve=resolve) as outbound:
                for url in (
                    f"http://api.example:{server.port}/v1/x",
                    f"http://127.0.0.1:{server.port}/v2/x",
                    f"http://127.0.0.1:{server.port}/v1/../x",
                    f"http://127.1:{server.port}/v1/x",
                ):
                    with pytest.raises(OutboundRefusedError):
                        await collected(outbound, "GET", url)
            assert server.connections == 0
            assert resolve.left == [PUBLIC]

    run(scenario())

"""A server for the commands of a file, and names that no other test uses."""

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.cli.holdfast_command import Command
from tests.server_process import ServerProcess

_numbers = count(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server") / "data") as process:
        yield process


@pytest.fixture
def command(server: ServerProcess, tmp_path: Path) -> Command:
    """`holdfast`, as somebody would type it who uses this server."""
    return Command(tmp_path / "home", server.url)


@pytest.fixture
def new_stream(command: Command) -> Callable[..., str]:
    """Make a stream of a content type."""

    def create(content_type: str = "text/plain", *flags: str) -> str:
        name = f"tests/stream-{next(_numbers)}"
        command("create", name, "--content-type", content_type, *flags)
        return name

    return create

"""Servers whose data outlives them."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.crash.small_disk import small_disk
from tests.server_process import ServerProcess

MakeServer = Callable[..., ServerProcess]


@pytest.fixture
def make_server(tmp_path: Path) -> Iterator[MakeServer]:
    """A server that is not started yet, with fsync; all those of a test share its data."""
    made: list[ServerProcess] = []

    def make(data_dir: Path = tmp_path / "data", **settings: object) -> ServerProcess:
        made.append(ServerProcess(data_dir, **settings))
        return made[-1]

    yield make
    for server in made:
        server.__exit__(None, None, None)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk, a part of which somebody else's file takes up."""
    with small_disk(tmp_path / "disk") as mount_point:
        yield mount_point

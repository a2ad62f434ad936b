"""The app as an object of its host: settings, entering and leaving."""

import asyncio
from pathlib import Path

import pytest

import holdfast
from holdfast.errors import HoldfastError, SettingsError


def test_path_and_text_are_taken_as_data_dir(tmp_path: Path) -> None:
    async def enter() -> None:
        async with holdfast.asgi(data_dir=tmp_path / "a"):
            pass
        async with holdfast.asgi(data_dir=str(tmp_path / "b")):
            pass

    asyncio.run(enter())
    assert (tmp_path / "a/format").read_text() == (tmp_path / "b/format").read_text()


def test_unknown_setting_is_refused() -> None:
    with pytest.raises(SettingsError, match="data_dri"):
        holdfast.asgi(data_dri="data")


def test_app_is_entered_once_at_a_time(tmp_path: Path) -> None:
    app = holdfast.asgi(data_dir=tmp_path)

    async def enter_twice() -> None:
        async with app:
            with pytest.raises(HoldfastError, match="running already"):
                await app.__aenter__()
        async with app:
            pass

    asyncio.run(enter_twice())

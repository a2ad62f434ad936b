"""What a server says when it is ready."""

from pathlib import Path

from holdfast.cli.serve import banner
from holdfast.settings import ServerSettings, Settings

URL = "http://127.0.0.1:4437"


def test_it_names_address_and_data_and_has_four_commands():
    text = banner(URL, Settings(server=ServerSettings(data_dir=Path("/srv/streams"))))
    assert URL in text.splitlines()[0]
    assert "/srv/streams" in text
    commands = [line for line in text.splitlines() if line.startswith("  curl ")]
    assert len(commands) == 4
    assert all(f"{URL}/v1/stream/" in command for command in commands)


def test_memory_mode_is_loud():
    text = banner(URL, Settings(server=ServerSettings(durability="memory")))
    assert "NOTHING SURVIVES A RESTART" in text
    assert "on disk" not in text

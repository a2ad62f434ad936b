"""`holdfast config`: what it prints can be loaded again, and says where values came from."""

import json
import tomllib

import pytest

from holdfast.cli.main import main
from holdfast.settings import all_settings, load_settings


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    for item in all_settings():
        monkeypatch.delenv(item.env, raising=False)
    monkeypatch.delenv("HOLDFAST_CONFIG", raising=False)


def test_every_setting_is_printed_with_its_source(capsys, monkeypatch):
    monkeypatch.setenv("HOLDFAST_LOG_LEVEL", "debug")
    assert main(["config", "--listen", "[::1]:0"]) == 0
    output = capsys.readouterr().out
    assert 'listen = "[::1]:0"  # --listen\n' in output
    assert 'level = "debug"  # HOLDFAST_LOG_LEVEL\n' in output
    assert "long_poll_timeout = 20.0  # default\n" in output
    tables = tomllib.loads(output)
    assert all(item.key in tables[item.table] for item in all_settings())


def test_the_output_is_a_settings_file(capsys, tmp_path):
    arguments = ["--data-dir", 'odd "$HOME" ü', "--wal-segment-bytes", "8192"]
    assert main(["config", *arguments]) == 0
    file = tmp_path / "again.toml"
    file.write_text(capsys.readouterr().out)
    flags = {"data_dir": 'odd "$HOME" ü', "wal_segment_bytes": 8192}
    expected = load_settings(file=None, env={}, flags=flags)
    assert load_settings(file=file, env={}, flags={}) == expected


def test_json(capsys, tmp_path):
    file = tmp_path / "holdfast.toml"
    file.write_text("version = 1\n[http]\nidle_timeout = 5\n")
    assert main(["config", "--json", "--config", str(file)]) == 0
    tables = json.loads(capsys.readouterr().out)
    assert tables["http"]["idle_timeout"] == {"value": 5.0, "source": str(file)}
    assert tables["server"]["data_dir"] == {"value": "data", "source": "default"}


def test_every_setting_has_a_flag(capsys):
    assert main(["config", "--help"]) == 0
    output = capsys.readouterr().out
    assert [item.flag for item in all_settings() if item.flag not in output] == []


def test_config_works_where_pydantic_is_loaded(capsys):
    """The library behind the flags has pydantic check them, if somebody imported it."""
    import pydantic

    assert pydantic.VERSION
    assert main(["config"]) == 0
    assert "[server]" in capsys.readouterr().out

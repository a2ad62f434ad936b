"""Settings: where values come from, how they are checked, and what the errors say."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest

from holdfast.errors import SettingsError
from holdfast.settings import (
    Settings,
    all_settings,
    load_settings,
    parse_listen,
    resolve_settings,
)
from holdfast.settings import groups as groups_module
from holdfast.settings.options import option


@pytest.fixture
def write(tmp_path):
    def write(text, *, version="version = 1\n"):
        file = tmp_path / "holdfast.toml"
        file.write_text(version + text)
        return file

    return write


def load(file=None, env=None, flags=None):
    return load_settings(file=file, env=env or {}, flags=flags or {})


def error(file=None, env=None, flags=None):
    with pytest.raises(SettingsError) as caught:
        load(file, env, flags)
    return caught.value.message


def test_without_sources_the_defaults_hold():
    assert load() == Settings()


def test_flag_beats_environment_beats_file_beats_default(write):
    file = write("[read]\nlong_poll_timeout = 1\nsse_lifetime = 1\nsse_heartbeat = 1\n")
    env = {"HOLDFAST_LONG_POLL_TIMEOUT": "2", "HOLDFAST_SSE_LIFETIME": "2"}
    read = load(file, env, {"long_poll_timeout": "3"}).read
    assert (read.long_poll_timeout_s, read.sse_lifetime_s, read.sse_heartbeat_s) == (3, 2, 1)
    assert read.read_bytes_max == Settings().read.read_bytes_max


def test_sources_are_reported(write):
    file = write("[wal]\nsegment_bytes = 4096\n")
    resolved = resolve_settings(
        file=file, env={"HOLDFAST_TLS_CERT": "c"}, flags={"tls_key": "k", "listen": None}
    )
    sources = {each.setting.name: each.source for each in resolved}
    assert sources["wal_segment_bytes"] == str(file)
    assert sources["tls_cert"] == "HOLDFAST_TLS_CERT"
    assert sources["tls_key"] == "--tls-key"
    assert sources["listen"] == "default"


def test_external_names_carry_the_prefix_but_not_the_seconds_suffix():
    by_name = {item.name: item for item in all_settings()}
    commit = by_name["wal_commit_timeout"]
    assert (commit.table, commit.key) == ("wal", "commit_timeout")
    assert (commit.env, commit.flag) == ("HOLDFAST_WAL_COMMIT_TIMEOUT", "--wal-commit-timeout")
    assert commit.attribute == "commit_timeout_s"


def test_names_are_unique():
    names = [item.name for item in all_settings()]
    assert len(names) == len(set(names))


def test_every_default_passes_its_own_check():
    for item in all_settings():
        value = str(item.default) if isinstance(item.default, Path) else item.default
        assert item.convert(value, lax=False) == item.default


def test_every_setting_can_be_given_as_text():
    env = {
        item.env: ",".join(item.default) if isinstance(item.default, tuple) else str(item.default)
        for item in all_settings()
    }
    assert load(env=env) == Settings()


def test_the_config_variable_names_the_file(write):
    file = write('[log]\nlevel = "debug"\n')
    assert load(env={"HOLDFAST_CONFIG": str(file)}).log.level == "debug"


def test_the_url_variable_is_not_a_setting():
    assert load(env={"HOLDFAST_URL": "http://elsewhere"}) == Settings()


def test_variables_are_expanded_in_text_and_converted(write):
    file = write('[server]\npublic_url = "https://${HOST}/$PART"\n[wal]\nsegment_bytes = "$SIZE"\n')
    settings = load(file, {"HOST": "h.example", "PART": "p", "SIZE": "8192"})
    assert settings.server.public_url == "https://h.example/p"
    assert settings.wal.segment_bytes == 8192


def test_a_doubled_dollar_is_a_dollar(write):
    assert load(write('[server]\ndata_dir = "a$$b"\n')).server.data_dir == Path("a$b")


def test_a_missing_variable_names_key_and_variable(write):
    message = error(write('[server]\ndata_dir = "$NOWHERE/x"\n'))
    assert "server.data_dir" in message
    assert "NOWHERE" in message


@pytest.mark.parametrize(
    ("version", "says"),
    [("", "missing"), ("version = 2\n", "is 2"), ("version = true\n", "True")],
)
def test_the_file_needs_its_version(write, version, says):
    message = error(write("", version=version))
    assert says in message
    assert "`version = 1`" in message


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[sever]\n", "unknown table sever; did you mean server?"),
        ("[read]\nlong_pol_timeout = 1\n", "did you mean long_poll_timeout?"),
        ("[server]\nlong_poll_timeout = 1\n", "long_poll_timeout belongs in [read]"),
        ('listen = "x:1"\n', "listen is not in a table; it belongs in [server]"),
        ('[http]\npipeline_max = "64"\n', "http.pipeline_max: expected an integer ≥ 1, got '64'"),
        ("[http]\npipeline_max = true\n", "expected an integer"),
        ("[http\n", "not valid TOML"),
    ],
)
def test_mistakes_in_the_file_are_named(write, text, says):
    file = write(text)
    message = error(file)
    assert says in message
    assert str(file) in message


def test_an_unreadable_file_is_named(tmp_path):
    assert "No such file" in error(tmp_path / "none.toml")


def test_an_unknown_variable_is_an_error():
    assert error(env={"HOLDFAST_LISTN": "x"}).endswith("did you mean HOLDFAST_LISTEN?")


def test_an_unknown_flag_is_an_error():
    assert "did you mean listen?" in error(flags={"listn": "x"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("long_poll_timeout", "0"),
        ("long_poll_timeout", "-1"),
        ("long_poll_timeout", "inf"),
        ("long_poll_timeout", "nan"),
        ("long_poll_timeout", "soon"),
        ("shutdown_timeout", "10"),
        ("connections_max", "0"),
        ("connections_max", "1.5"),
        ("wal_ballast_bytes", "-1"),
        ("durability", "fsyn"),
        ("data_dir", ""),
        ("listen", "4437"),
        ("listen", ":4437"),
        ("listen", "::1:4437"),
        ("listen", "host:65536"),
        ("public_url", "streams.example.com"),
        ("public_url", "ftp://streams.example.com"),
        ("public_url", "https://x/?a=b"),
        ("cors_origin", "a b"),
        ("cors_origin", "https://x/path"),
    ],
)
def test_bad_values_name_their_source(name, value):
    flag = "--" + name.replace("_", "-")
    message = error(flags={name: value})
    assert message.startswith(f"{flag}: expected ")
    assert message.endswith(f", got {value!r}")
    variable = f"HOLDFAST_{name.upper()}"
    assert error(env={variable: value}).startswith(f"{variable}: expected ")


def test_tls_needs_both_files():
    assert error(flags={"tls_cert": "c"}).startswith("--tls-cert: TLS needs both")
    assert load(flags={"tls_cert": "c", "tls_key": "k"}).tls.key == "k"


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("127.0.0.1:4437", ("127.0.0.1", 4437)),
        ("localhost:0", ("localhost", 0)),
        ("[::1]:80", ("::1", 80)),
    ],
)
def test_listen_addresses(text, parsed):
    assert parse_listen(text) == parsed


def test_a_public_url_loses_its_last_slash():
    assert load(flags={"public_url": "https://x/a/"}).server.public_url == "https://x/a"


def test_the_home_directory_is_expanded(monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    data_dir = load(flags={"data_dir": "~/streams"}).server.data_dir
    assert data_dir == Path("/home/someone/streams")


@dataclass(frozen=True)
class ExtraSettings:
    """A group that a later version might add."""

    prefix: ClassVar[str] = "extra_"

    token: str = option("A secret.", "", secret=True)
    hosts: tuple[str, ...] = option("A list.", ())
    enabled: bool = option("A switch.", False)


@pytest.fixture
def extended(monkeypatch):
    """Settings with one more group, declared and not mentioned anywhere else."""

    @dataclass(frozen=True)
    class Extended(Settings):
        extra: ExtraSettings = ExtraSettings()

    for module in (groups_module, load_settings.__globals__):
        target = module if isinstance(module, dict) else vars(module)
        monkeypatch.setitem(target, "Settings", Extended)
    all_settings.cache_clear()
    yield
    monkeypatch.undo()
    all_settings.cache_clear()


def test_a_new_group_needs_no_other_change(extended, write):
    file = write('[extra]\nhosts = ["a", "b"]\nenabled = true\n')
    assert load(file).extra == ExtraSettings(hosts=("a", "b"), enabled=True)
    env = {"HOLDFAST_EXTRA_HOSTS": "a, b", "HOLDFAST_EXTRA_ENABLED": "true"}
    assert load(env=env).extra == ExtraSettings(hosts=("a", "b"), enabled=True)


def test_secrets_are_masked(extended, write):
    resolved = resolve_settings(file=None, env={"HOLDFAST_EXTRA_TOKEN": "hush"}, flags={})
    token = next(each for each in resolved if each.setting.name == "extra_token")
    assert token.value == "hush"
    assert "hush" not in str(token.shown)
    assert "hush" not in error(write('[extra]\ntoken = ["hush"]\n'))


def test_settings_are_values():
    settings = Settings()
    changed = replace(settings, wal=replace(settings.wal, segment_bytes=4096))
    assert changed != settings
    assert hash(changed) != hash(settings)

"""`holdfast context`, tokens and TLS: which server is talked to, and as whom."""

import os
import stat

import pytest
import trustme

from tests.cli.holdfast_command import Command
from tests.server_process import ServerProcess


@pytest.fixture
def alone(tmp_path):
    """`holdfast` without a server in the environment."""
    return Command(tmp_path / "home")


def contexts_file(command):
    return command.home / ".config" / "holdfast" / "contexts.toml"


def test_contexts_are_added_used_listed_and_removed(alone):
    assert "There are no contexts" in alone.run("context", "list").stderr
    added = alone.run("context", "add", "local", "http://127.0.0.1:1", "--token", "secret-1")
    assert added.stderr == "local is http://127.0.0.1:1, and current\n"
    alone("context", "add", "prod", "https://me:secret-2@streams.example.com/x")
    assert alone("context", "list") == (
        "* local            http://127.0.0.1:1\n  prod             https://streams.example.com/x\n"
    )
    alone("context", "use", "prod")
    listed = alone.json("context", "list")
    assert [each["current"] for each in listed] == [False, True]
    assert "secret" not in str(listed)
    assert stat.S_IMODE(contexts_file(alone).stat().st_mode) == 0o600
    alone("context", "remove", "prod")
    assert alone.run("context", "use", "prod").returncode == 2
    assert [each["context"] for each in alone.json("context", "list")] == ["local"]


@pytest.mark.parametrize(
    "content",
    [
        "version = 2",
        "version = 1\ncontexts = 3",
        "version = 1\nx = 1",
        "[[",
        "\udcff",
        "version = 1\n[contexts.a]\nurl = 3",
        "version = 1\n[contexts.a]\ntoken = 'x'",
        "version = 1\ncurrent = 'gone'",
        "version = 1\ncurrent = []",
    ],
)
def test_a_broken_file_is_one_line(alone, capsys, monkeypatch, content):
    from holdfast.cli.main import main

    contexts_file(alone).parent.mkdir(parents=True)
    contexts_file(alone).write_bytes(content.encode(errors="surrogateescape"))
    for name in [name for name in os.environ if name.startswith("HOLDFAST_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(alone.home))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    assert main(["ls"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "contexts.toml" in said or "'gone'" in said


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A server that asks for tokens, and a reader's and a writer's token."""
    folder = tmp_path_factory.mktemp("guarded")
    maker = Command(folder / "home")
    tokens = {
        action: maker(
            "token", "create", "--name", action, "--scope", f"{action}:demo1", "--file", "tokens"
        ).strip()
        for action in ("read", "write")
    }
    with ServerProcess(folder / "data", access_tokens_file=maker.home / "tokens") as server:
        yield server.url, tokens


def test_tokens(alone, guarded):
    url, tokens = guarded
    nobody = alone.with_env(HOLDFAST_URL=url)
    assert nobody.run("create", "demo1/a").returncode == 5
    done = nobody.run("create", "demo1/a", "--token", tokens["read"])
    assert (done.returncode, "write" in done.stderr) == (5, True)
    nobody.with_env(HOLDFAST_TOKEN=tokens["write"])("create", "demo1/a", "--data", "hello")
    (alone.home / "token").write_text(tokens["read"] + "\n")
    alone("context", "add", "demo", url, "--token-file", str(alone.home / "token"))
    assert alone("read", "demo1/a") == "hello"
    # The flag goes before the context's, and the variable as well.
    assert alone.run("read", "demo1/a", "--token", "wrong").returncode == 5
    assert alone.with_env(HOLDFAST_TOKEN="wrong").run("read", "demo1/a").returncode == 5
    (alone.home / "token").unlink()
    gone = alone.run("read", "demo1/a")
    assert (gone.returncode, gone.stderr.count("\n")) == (2, 1)


def test_the_token_of_a_context_stays_with_its_server(alone, guarded):
    url, tokens = guarded
    # The context is of another server: its token would be good here, but is not for here.
    alone("context", "add", "other", "http://127.0.0.1:1", "--token", tokens["write"])
    stream = f"{url}/v1/stream/demo1/b"
    assert alone.run("create", stream).returncode == 5
    assert alone.run("create", stream, "--token", tokens["write"], "--url", url).returncode == 0


def test_tls_with_an_authority_of_our_own(tmp_path, alone):
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    for name, blob in (
        ("key.pem", certificate.private_key_pem),
        ("cert.pem", certificate.cert_chain_pems[0]),
        ("ca.pem", authority.cert_pem),
    ):
        blob.write_to_path(str(alone.home / name))
    flags = {"tls_cert": alone.home / "cert.pem", "tls_key": alone.home / "key.pem"}
    with ServerProcess(tmp_path / "data", **flags) as server:
        assert server.scheme == "https"
        refused = alone.run("create", "a", "--url", server.url, "--retries", "0")
        assert (refused.returncode, "certificate" in refused.stderr) == (6, True)
        alone("create", "a", "--url", server.url, "--ca-file", "ca.pem")
        alone("context", "add", "tls", server.url, "--ca-file", str(alone.home / "ca.pem"))
        assert alone("ls") == "a\n"


def test_the_variables_of_the_client_do_not_trouble_a_server(capsys, monkeypatch):
    from holdfast.cli.main import main

    for name in [name for name in os.environ if name.startswith("HOLDFAST_")]:
        monkeypatch.delenv(name)
    for name in ("TOKEN", "CONTEXT", "CONTEXTS"):
        monkeypatch.setenv(f"HOLDFAST_{name}", "x")
    assert main(["config"]) == 0
    assert capsys.readouterr().err == ""

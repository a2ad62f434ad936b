"""The servers compared: how each is found or installed, started, and addressed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench import tools

PREFIX = "/v1/stream/bench/"


@dataclass(frozen=True, slots=True)
class Server:
    """One contestant.

    `require` makes it runnable or raises `tools.MissingError` saying why it cannot be measured.
    """

    key: str
    title: str
    kept: str
    """What an acknowledged append rests on: the reader of a table must see it beside the number."""
    require: Callable[[], None]
    command: Callable[[int, Path], list[str]]
    prefix: str = PREFIX
    speaks_protocol: bool = True


def _holdfast_path() -> Path:
    return Path(sys.executable).parent / "holdfast"


def _require_holdfast() -> None:
    if not _holdfast_path().exists():
        raise tools.MissingError(f"{_holdfast_path()} is not there: pip install -e .")


def _holdfast(port: int, data_dir: Path) -> list[str]:
    listen = f"127.0.0.1:{port}"
    return [str(_holdfast_path()), "serve", "--listen", listen, "--data-dir", str(data_dir)]


def _node_memory(port: int, _data_dir: Path) -> list[str]:
    return ["node", str(tools.NODE_DIR / "server.mjs"), str(port)]


def _node_file(port: int, data_dir: Path) -> list[str]:
    return [*_node_memory(port, data_dir), str(data_dir)]


def _nginx(port: int, data_dir: Path) -> list[str]:
    template = (tools.BENCH_DIR / "nginx.conf").read_text()
    config = data_dir / "nginx.conf"
    config.write_text(template.replace("@PORT@", str(port)).replace("@DIR@", str(data_dir)))
    return [tools.find("nginx"), "-p", str(data_dir), "-c", str(config), "-g", "daemon off;"]


def _rust(port: int, data_dir: Path) -> list[str]:
    return [str(tools.RUST_SERVER), "--port", str(port), "--data-dir", str(data_dir)]


HOLDFAST = Server("holdfast", "Holdfast", "fsync", _require_holdfast, _holdfast)
NODE_MEMORY = Server("node-memory", "Node, memory", "nothing", tools.require_node, _node_memory)
NODE_FILE = Server("node-file", "Node, files", "fsync", tools.require_node, _node_file)
RUST = Server("rust", "Rust, WAL", "fsync", tools.require_rust, _rust)
NGINX = Server("nginx", "nginx 204", "no store", tools.require_nginx, _nginx, speaks_protocol=False)

ALL = (HOLDFAST, NODE_MEMORY, NODE_FILE, RUST, NGINX)

"""Finds the programs the bench needs and installs them on demand, or says what to install."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

BENCH_DIR = Path(__file__).parent
WORK_DIR = BENCH_DIR / ".work"
NODE_DIR = BENCH_DIR / "node"
RUST_ROOT = WORK_DIR / "rust"
RUST_SERVER = RUST_ROOT / "bin" / "durable-streams-server"
RUST_CRATE = "durable-streams@0.1.5"
PY_SPY_DIR = WORK_DIR / "py-spy"
PUBLISHED_DIR = WORK_DIR / "published-client"
PUBLISHED_CLIENT = "durable-streams==0.1.0"

# Debian keeps nginx in /usr/sbin, rustup keeps cargo in the home directory.
_MORE_PLACES = ("/usr/sbin", "/usr/local/sbin", str(Path.home() / ".cargo" / "bin"))


class MissingError(Exception):
    """Something cannot be measured here; the message says what would have to be installed."""


def find(program: str) -> str:
    """Return a program's path, or raise `MissingError`."""
    path = shutil.which(program) or shutil.which(program, path=os.pathsep.join(_MORE_PLACES))
    if path is None:
        raise MissingError(f"{program} is not installed")
    return path


def require_wrk() -> None:
    """Make sure of wrk, without which there is no load."""
    _require_package("wrk", "wrk")


def require_nginx() -> None:
    """Make sure of nginx, the floor."""
    _require_package("nginx", "nginx-light")


def require_node() -> None:
    """Make sure of node and of the reference server at the version the lock names."""
    find("node")
    wanted = (NODE_DIR / "package-lock.json").stat().st_mtime
    installed = NODE_DIR / "node_modules" / ".package-lock.json"
    if installed.exists() and installed.stat().st_mtime >= wanted:
        return
    # lmdb comes prebuilt as an optional package: no install script has to run.
    _install([find("npm"), "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=NODE_DIR)


def require_rust() -> None:
    """Make sure of the Rust server, which is built only by `--with-rust`: it takes minutes."""
    if not RUST_SERVER.exists():
        raise MissingError("not built: run once with --with-rust (needs cargo, takes minutes)")


def build_rust() -> None:
    """Build the Rust server with cargo, if it is not there yet."""
    if not RUST_SERVER.exists():
        _install([find("cargo"), "install", "--locked", "--root", str(RUST_ROOT), RUST_CRATE])


def py_spy() -> str:
    """Return the path of py-spy, installed beside the bench rather than into the environment."""
    program = PY_SPY_DIR / "bin" / "py-spy"
    if not program.exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet"]
        _install([*pip, "--target", str(PY_SPY_DIR), "py-spy"])
    return str(program)


def published_python() -> str:
    """Return a Python that has the client from PyPI, in an environment of its own."""
    python = PUBLISHED_DIR / "bin" / "python"
    installed = PUBLISHED_DIR / PUBLISHED_CLIENT
    if not installed.exists():
        _install([sys.executable, "-m", "venv", "--clear", str(PUBLISHED_DIR)])
        _install([str(python), "-m", "pip", "install", "--quiet", PUBLISHED_CLIENT])
        installed.touch()
    return str(python)


def _require_package(program: str, package: str) -> None:
    try:
        find(program)
    except MissingError:
        apt = shutil.which("apt-get")
        if apt is None or os.geteuid() != 0:
            raise MissingError(f"{program} is not installed: apt-get install {package}") from None
        _install([apt, "install", "--yes", "--no-install-recommends", package])
        find(program)


def _install(command: list[str], cwd: Path | None = None) -> None:
    print("installing:", " ".join(command), flush=True)
    # Debian starts an installed nginx by itself; the bench wants only the program.
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    done = subprocess.run(
        command, cwd=cwd, env=environment, text=True, capture_output=True, check=False
    )
    if done.returncode != 0:
        last = (done.stderr or done.stdout).strip().splitlines()[-4:]
        raise MissingError(f"could not install: {' '.join(command)}: {' / '.join(last)}")

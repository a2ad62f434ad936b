"""A small disk: a tmpfs, which takes root to mount."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

DISK_BYTES = 4 * 1024 * 1024
OTHER_BYTES = 1024 * 1024


@contextlib.contextmanager
def small_disk(mount_point: Path) -> Iterator[Path]:
    """A disk, a part of which somebody else's file `other` takes up."""
    mount_point.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(mount_point)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        reason = f"a full disk cannot be tested: {mounted.stderr.strip()} (it takes root)"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    try:
        (mount_point / "other").write_bytes(bytes(OTHER_BYTES))
        yield mount_point
    finally:
        subprocess.run(["umount", "--lazy", str(mount_point)], check=True)


def take_the_rest(path: Path) -> None:
    """Have this file take up what is left."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
    with contextlib.suppress(OSError):
        while os.write(descriptor, bytes(1024)):
            pass
    os.close(descriptor)


@contextlib.contextmanager
def read_only(mount_point: Path) -> Iterator[None]:
    """Let nothing be written for a while, by root neither."""
    _remount(mount_point, "ro")
    try:
        yield
    finally:
        _remount(mount_point, "rw")


def _remount(mount_point: Path, mode: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{mode}", str(mount_point)], check=True)

"""Commands set logging up for a process of their own; run here, they must not keep it."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def own_logging() -> Iterator[None]:
    """Whatever the block does to the root logger is undone."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)

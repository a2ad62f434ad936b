"""Readers that do not read, once more over ASGI: the host's buffers fill up, Holdfast waits."""

import pytest

from tests.lifecycle.test_slow_readers import (
    test_catch_up_readers_that_do_not_read_catch_up_later,
    test_sse_readers_that_do_not_read_catch_up_later,
)

pytestmark = pytest.mark.slow

__all__ = [
    "test_catch_up_readers_that_do_not_read_catch_up_later",
    "test_sse_readers_that_do_not_read_catch_up_later",
]

"""The tests of the protocol, once more over ASGI: the same handlers give the same answers.

What HTTP/1.1 itself asks for is the host's business here, and stays in `tests/http`.
"""

from importlib import import_module
from types import ModuleType

import pytest

from tests.http.test_listing import sorted_bucket
from tests.http.test_restart import restart

pytestmark = pytest.mark.slow

__all__ = ["restart", "sorted_bucket"]

NAMES = (
    "append",
    "bootstrap",
    "buckets",
    "caching",
    "close",
    "conditional_writes",
    "cors",
    "create",
    "delete",
    "head",
    "json_mode",
    "listing",
    "long_poll",
    "producers",
    "read",
    "restart",
    "snapshot_retention",
    "snapshots",
    "sse",
    "ttl",
)
MODULES = tuple(import_module(f"tests.http.test_{name}") for name in NAMES)
# A host that cannot start says so in its own way; see `test_hosts`.
NOT_HERE = {"test_second_server_on_the_same_data_is_told_why_not"}


def collect_from(module: ModuleType) -> dict[str, object]:
    """The tests of a module, with its name before theirs, since some share theirs."""
    topic = module.__name__.rpartition(".")[2]
    return {
        name.replace("test", topic, 1): value
        for name, value in vars(module).items()
        if name.startswith("test_") and name not in NOT_HERE
    }


for each in MODULES:
    globals().update(collect_from(each))

"""Object stores of every kind, and an environment without anybody's credentials."""

import os

import pytest

from tests.moto_server import MotoServer
from tests.storage.stores import STORES


@pytest.fixture(autouse=True)
def no_credentials(monkeypatch):
    """Nothing of the machine's own, and no metadata service that would be asked instead."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "GOOGLE_", "AZURE_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9")


@pytest.fixture(scope="session")
def moto():
    with MotoServer() as server:
        yield server


@pytest.fixture(params=STORES)
def backend(request, tmp_path):
    """One kind of object store, empty."""
    return STORES[request.param](request, tmp_path)


@pytest.fixture
def store(backend):
    return backend.store

"""A log of every kind, closed after the test."""

import pytest

from tests.log.implementations import ALL, FILES, KEEPING, FileImplementation


@pytest.fixture(params=ALL)
def any_log(request, tmp_path):
    implementation = ALL[request.param](tmp_path)
    yield implementation
    implementation.close()


@pytest.fixture(params=KEEPING)
def keeping_log(request, tmp_path):
    """A log that gives back after a restart what it was given."""
    implementation = KEEPING[request.param](tmp_path)
    yield implementation
    implementation.close()


@pytest.fixture(params=FILES)
def segmented_log(request, tmp_path):
    """A log in segment files."""
    implementation = FILES[request.param](tmp_path)
    yield implementation
    implementation.close()


@pytest.fixture
def file_log(tmp_path):
    implementation = FileImplementation(tmp_path)
    yield implementation
    implementation.close()

"""A storage worker for each test."""

import pytest

from tests.unit.storage.rig import Rig


@pytest.fixture
def rig(tmp_path):
    rig = Rig(tmp_path)
    yield rig
    rig.close()

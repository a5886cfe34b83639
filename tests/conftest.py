"""What all tests share: one thread (so bits and timings do not depend on neighbours), and where real data lies."""

import os
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real images that VIT_TEST_DATA names; the test is skipped where there is none."""
    folder = os.environ.get("VIT_TEST_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("VIT_TEST_DATA names no folder of real images")
    return Path(folder)

"""Every registered model as a parameter of tests; those like another but for patches or width are slow ones."""

import pytest

from vit.config import MODEL_NAMES

KINDS = ("vit_micro_2", "vit_mini_16", "vit_stem_16", "vit_b_16", "resnet18", "efficientnet_lite0")
EVERY_MODEL = pytest.mark.parametrize(
    "name", [name if name in KINDS else pytest.param(name, marks=pytest.mark.slow) for name in MODEL_NAMES]
)

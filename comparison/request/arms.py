"""Default arms: those of a comparison without `--arms`, and those of a ladder of ways to fine-tune one model."""

from trainers.config import RunConfig
from trainers.options import defaults
from vit.config import EMBEDDED_WEIGHTS
from vit.local_models import local_pretrained_models

LADDER: tuple[dict[str, dict[str, str]], ...] = (
    {"model": {"trainable": "all"}},
    {"model": {"trainable": "head"}},
    {"model": {"trainable": "norms"}},
    {"model": {"trainable": "lora:8"}},
    {"model": {"trainable": "last:4"}},
    {"model": {"trainable": "all"}, "train": {"start_head": "probe"}},
)
"""Ways to fine-tune; the usual one comes first: the others are judged against it."""


def ladder_arms(arm: RunConfig) -> tuple[RunConfig, ...]:
    """Return the arm with each way to fine-tune its model; its head begins as usual but in the last one."""
    arm = arm.changed(train=defaults.left_open(arm.train, start_head="plain"))
    return tuple(arm.changed(**changes) for changes in LADDER)


def default_arms(base: RunConfig) -> tuple[RunConfig, ...]:
    """Return the same architecture at the same image size, from scratch and pretrained; beside them, for photographs,
    the ImageNet models that are installed, frozen, as a reference. Everything else is as in `base`."""
    if base.data.source in defaults.SMALL_IMAGES:
        models = [{"name": "vit_nano_8", "weights": weights} for weights in ("none", "fashion_mnist")]
    else:
        models = [{"name": "vit_stem_16", "weights": weights} for weights in ("none", "tiny_imagenet")]
        references = {
            model.name: model.weights for model in local_pretrained_models() if model.weights not in EMBEDDED_WEIGHTS
        }
        models += [{"name": name, "weights": str(found), "trainable": "head"} for name, found in references.items()]
    return tuple(base.changed(model=model) for model in models)

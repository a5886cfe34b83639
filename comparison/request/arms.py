"""Arms of a comparison without `--arms`."""

from trainers.config import RunConfig
from trainers.options import defaults
from vit.config import EMBEDDED_WEIGHTS
from vit.factory import local_pretrained_models


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

"""What is compared where a person names no arms, or one model for a ladder of ways to fine-tune it."""

from trainers.options import defaults
from vit.at_hand import at_hand
from vit.config import EMBEDDED_WEIGHTS

RUNGS = (
    "trainable=all",
    "trainable=head",
    "trainable=norms",
    "trainable=lora:8",
    "trainable=last:4",
    "trainable=all,start_head=probe",
)
"""What everybody does comes first: the others are judged against it."""


def rungs(model: str) -> tuple[str, ...]:
    """One arm for each rung of a model, as the command line names it."""
    return tuple(f"{model},{rung}" for rung in RUNGS)


def default_arms(source: str) -> tuple[str, ...]:
    """The same architecture at the same image size, from scratch and pretrained; beside them, for photographs, what is
    at hand of ImageNet, frozen, as a reference. As arms of the command line."""
    if source in defaults.SMALL_IMAGES:
        return "vit_nano_8,weights=none", "vit_nano_8,weights=fashion_mnist"
    models = {model.name: model.weights for model in at_hand() if model.weights not in EMBEDDED_WEIGHTS}
    references = [f"{name},weights={weights},trainable=head" for name, weights in models.items()]
    return "vit_stem_16,weights=none", "vit_stem_16,weights=tiny_imagenet", *references

"""The built-in sets, one row each: who reads it, where it is downloaded, and what is known of it. No torch here."""

from dataclasses import dataclass


@dataclass(frozen=True)
class BuiltIn:
    """What is known of a built-in set."""

    reader: str
    """A function in datasets/sources/builtin.py: from the data root to `Samples`, or to a `Reading`, which knows their
    faults."""
    archive: tuple[str, str] | None = None
    """Address and MD5 of what is downloaded; None: torchvision does it, or nobody can."""
    mirror: bool = True
    """A mirrored image keeps its label."""
    small_model: str | None = None
    """The model that trains on pictures as small as these if a person names none; None: photographs."""
    learnt_by: str = ""
    """Weights that were trained on it, so that its test scores are optimistic: `fashion_mnist` those of this name,
    `imagenet` all others."""
    learnt: str = ""
    """Line that says so."""


BUILT_IN = {
    "digits": BuiltIn("read_digits", mirror=False, small_model="vit_micro_2"),
    "mnist": BuiltIn("read_mnist", mirror=False, small_model="vit_micro_4"),
    "fashion_mnist": BuiltIn(
        "read_fashion_mnist",
        small_model="vit_micro_4",
        learnt_by="fashion_mnist",
        learnt="fashion_mnist is what the embedded weights were trained on",
    ),
    "cifar10": BuiltIn(
        "read_cifar10",
        ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),
        small_model="vit_micro_4",
    ),
    "cifar100": BuiltIn(
        "read_cifar100",
        ("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),
        small_model="vit_micro_4",
    ),
    "hymenoptera": BuiltIn(
        "read_hymenoptera",
        ("https://download.pytorch.org/tutorial/hymenoptera_data.zip", "6f27cd8d41ffe225c75e0a333036523d"),
        learnt_by="imagenet",
        learnt="hymenoptera is a subset of ImageNet-1k (classes ant and bee)",
    ),
    "dog_breed": BuiltIn(
        "read_dog_breed",
        learnt_by="imagenet",
        learnt="dog_breed (Stanford Dogs) is taken from ImageNet, 120 of its classes",
    ),
    "oxford_pets": BuiltIn("read_oxford_pets"),
    "flowers102": BuiltIn("read_flowers102"),
}
"""Name -> row, in the order in which they are listed."""


def small_model(source: str) -> str | None:
    """Return the model for a built-in set of small pictures; None: for any other set."""
    return BUILT_IN[source].small_model if source in BUILT_IN else None


def have_learnt(weights: str | None, source: str) -> str:
    """Say that weights of this name were trained on a set, or nothing. None: a library's default weights."""
    row = BUILT_IN.get(source)
    if row is None or not row.learnt_by or weights == "none":
        return ""
    return row.learnt if (weights == "fashion_mnist") == (row.learnt_by == "fashion_mnist") else ""

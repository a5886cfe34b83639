"""Pass a model over labelled images, once for all that an evaluation needs."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader

from datasets.bundle import ImageSet, image_set
from datasets.copies import units_of
from inference.certainty.layer_features import recorded, whole_parts
from inference.classifier import Classifier
from trainers.engine.engines import Scores, score_split
from trainers.engine.predictions import Predictions
from vit.tensor_files import require_finite


@dataclass(frozen=True, eq=False)
class ScoredPass:
    """Scores and features of a model on N labelled images, and which these are.

    K columns of probabilities: of all classes, or of a large pass the likeliest of each image.
    """

    name: str
    """Beginning of the names of the files about it."""
    scores: Scores
    features: tuple[Tensor, ...] | None
    """Parts (N, width) of the features; None where the layers of a model are not known."""
    images: ImageSet
    class_names: Sequence[str]

    @property
    def outputs(self) -> Predictions:
        return self.scores.outputs

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics as fractions."""
        return self.scores.metrics

    @cached_property
    def units(self) -> NDArray[np.int64]:
        """Number of the unit of each image (N,): a group, or one that stands alone."""
        return units_of(self.images.samples, self.images.indices)

    @cached_property
    def probabilities(self) -> NDArray[np.float64]:
        """Probabilities (N, K), of the classes `columns`."""
        outputs = self.outputs
        return (outputs.logits.double().softmax(dim=1) if outputs.whole else outputs.probabilities.double()).numpy()

    @property
    def columns(self) -> NDArray[np.int64]:
        """Classes (N, K) of the probabilities."""
        if not self.outputs.whole:
            return self.outputs.classes.numpy()
        return np.broadcast_to(np.arange(self.probabilities.shape[1]), self.probabilities.shape)


def score(classifier: Classifier, loader: DataLoader, name: str) -> ScoredPass:
    """Score a classifier on the images of a loader, and record its features.

    Both in one pass, in the order of the images. Raises WeightsError: its outputs are not finite.
    """
    images = image_set(loader)
    with recorded(classifier.model, len(images)) as parts:
        scores = score_split(classifier.model, loader, classifier.device, classifier.amp_dtype)
    require_finite(classifier.source, {"the output": scores.outputs.losses})
    return ScoredPass(name, scores, whole_parts(parts), images, classifier.class_names)

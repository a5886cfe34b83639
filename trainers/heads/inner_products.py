"""Ridge regression and discriminant analysis of `trainers.heads.linear` by inner products alone: the logits that a
head, fitted to some images, gives others, from the Gram matrix (n, n) of all.

A fit then costs by images, not by features; and the Gram matrix of networks side by side is the sum of theirs, so a set
of networks costs no product of features at all. `learn` and `ask` are rows of the matrix; logits are (len(ask), K).
"""

import numpy as np
from scipy.linalg import solve

from trainers.engine.temperature import Floats, Ints


def ridge(gram: Floats, labels: Ints, classes: int, learn: Ints, ask: Ints, *, penalty: float) -> Floats:
    """Logits of `linear.ridge`, in its dual form (Saunders, Gammerman and Vovk 1998)."""
    known, asked = gram[np.ix_(learn, learn)], gram[np.ix_(ask, learn)]
    middle = known.mean(axis=0)
    asked += middle.mean() - middle - asked.mean(axis=1, keepdims=True)  # inner products about the mean of `learn`
    known += middle.mean() - middle - middle[:, None]
    known.flat[:: len(known) + 1] += penalty
    targets = np.eye(classes)[labels[learn]]
    logits: Floats = 1 / classes + asked @ solve(known, targets - targets.mean(axis=0), assume_a="pos")
    return logits


def discriminant(gram: Floats, labels: Ints, classes: int, learn: Ints, ask: Ints, *, dimensions: int) -> Floats:
    """Logits of `linear.discriminant`: the shrunken covariance is a multiple of the identity beside one of as low a
    rank as there are images, so that Woodbury's identity inverts it. `dimensions`: those of the features."""
    known, asked = gram[np.ix_(learn, learn)], gram[np.ix_(ask, learn)]
    present = np.unique(labels[learn])
    members = (labels[learn][:, None] == present).astype(np.float64)  # (n, C)
    averaging = members / members.sum(axis=0)

    def within(products: Floats) -> Floats:
        """(m, n) inner products with images, as those with what each image has beside the mean of its class."""
        beside: Floats = products - (products @ averaging) @ members.T
        return beside

    scatter, count = within(within(known).T), len(learn)
    average = max(np.trace(scatter) / count / dimensions, 1e-12)
    squares = np.square(scatter).sum() / count**2
    noise = (np.square(np.diag(scatter)).mean() - squares) / count
    distance = squares - average**2 * dimensions
    share = min(max(noise / distance, 0.0), 1.0) if distance > 0 else 1.0
    flat, steep = (share + 1e-9) * average, (1 - share) / count
    to_means = known @ averaging  # (n, C)
    of_means = within(to_means.T)  # (C, n)
    inverted = steep * solve(flat * np.eye(count) + steep * scatter, of_means.T, assume_a="pos")
    own = np.diag(averaging.T @ to_means) - np.einsum("cn,nc->c", of_means, inverted)
    logits = np.zeros((len(ask), classes))
    logits[:, present] = (asked @ averaging - within(asked) @ inverted - 0.5 * own) / flat
    return logits

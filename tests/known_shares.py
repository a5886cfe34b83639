"""A classifier for MAPIE whose probabilities are given."""

import numpy as np


class Known:
    """A fitted classifier whose probabilities (N, C) are known, of rows that are their numbers."""

    def __init__(self, shares: np.ndarray) -> None:
        self.shares, self.classes_ = shares, np.arange(shares.shape[1])

    def fit(self, x, y):
        return self

    def predict(self, x):
        return self.predict_proba(x).argmax(axis=1)

    def predict_proba(self, x):
        return self.shares[x[:, 0].astype(int)]

    def __sklearn_is_fitted__(self):
        return True

"""Connected components, without the second that importing scipy takes."""

import numpy as np


def connected(count: int, links: np.ndarray) -> np.ndarray:
    """int64 (count,): for each place the smallest one that it is linked to through any number of links (2, m); -1 where
    it has no link."""
    parent = np.arange(count)
    for left, right in links.T.tolist():
        while parent[left] != left:
            parent[left] = left = parent[parent[left]]
        while parent[right] != right:
            parent[right] = right = parent[parent[right]]
        parent[max(left, right)] = min(left, right)
    while (parent[parent] != parent).any():
        parent = parent[parent]
    alone = np.bincount(parent, minlength=count)[parent] == 1
    return np.where(alone, -1, parent)

"""A few pictures that stand for a stream of any length: of each predicted class the least and the most certain."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import chain, zip_longest

from figures.judged import Judged


class Spread:
    """Keeps a pool of ten times as many pictures as are wanted, and thins it to half of that when it is full."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.pool: list[Judged] = []

    def add(self, image: Judged) -> None:
        self.pool.append(image)
        if len(self.pool) == 10 * self.count:
            self.pool = thinned(self.pool, 5 * self.count)

    def chosen(self) -> list[Judged]:
        return sorted(thinned(self.pool, self.count), key=lambda image: (image.predicted, image.probability))


def thinned(images: Sequence[Judged], count: int) -> list[Judged]:
    """Up to `count` images: each class in turn gives its least or its most certain one that is left."""
    classes = defaultdict(list)
    for image in sorted(images, key=lambda image: image.probability):
        classes[image.predicted].append(image)
    orders = []
    for number, own in enumerate(classes.values()):
        pairs = zip(own, reversed(own), strict=True)
        ends = chain.from_iterable(pair[:: -1 if number % 2 else 1] for pair in pairs)
        orders.append(list(ends)[: len(own)])
    rounds = chain.from_iterable(zip_longest(*orders))
    return [image for image in rounds if image is not None][:count]

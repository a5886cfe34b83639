"""A disk that is full."""

import resource
from contextlib import contextmanager


@contextmanager
def full_disk(limit=64):
    """Like a disk that is full after `limit` bytes of each file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

"""Ask once a minute whether Hugging Face's hub answers.

Its library asks five times for each file, which takes half a minute without a network.
"""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

from vit.config import HUB_OFFLINE


@contextmanager
def hub_access(*, online: bool) -> Iterator[None]:
    """Let the hub's library use only its cache if `online` is false or the hub does not answer."""
    from huggingface_hub import constants as hub

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it logs every attempt without a network
    usual = hub.HF_HUB_OFFLINE
    minute = int(time.monotonic() / 60)
    hub.HF_HUB_OFFLINE = usual or HUB_OFFLINE.get() or not (online and hub_answers(hub.ENDPOINT, minute=minute))
    try:
        yield
    finally:
        hub.HF_HUB_OFFLINE = usual


@lru_cache(maxsize=1)
def hub_answers(url: str, *, minute: int) -> bool:
    """Return whether the hub answers; `minute` makes the answer of this minute the same."""
    try:
        from huggingface_hub.utils import get_session

        get_session().head(url, timeout=10)
    except Exception:  # of its HTTP client, whichever that is
        return False
    return True

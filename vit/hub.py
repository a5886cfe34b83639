"""Hugging Face's hub, asked once whether it is there: its library would ask five times for each file, half a minute."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

from vit.config import HUB_OFFLINE


@contextmanager
def hub_access(*, online: bool) -> Iterator[None]:
    """Keep the hub's library off the network where the hub does not answer or `online` is false; files then come from
    its cache."""
    from huggingface_hub import constants as hub

    usual = hub.HF_HUB_OFFLINE
    minute = int(time.monotonic() / 60)
    hub.HF_HUB_OFFLINE = usual or HUB_OFFLINE.get() or not (online and hub_answers(hub.ENDPOINT, minute=minute))
    try:
        yield
    finally:
        hub.HF_HUB_OFFLINE = usual


@lru_cache(maxsize=1)
def hub_answers(url: str, *, minute: int) -> bool:
    """Return whether the hub answers in this minute of the process; it is not asked twice in one."""
    try:
        from huggingface_hub.utils import get_session

        get_session().head(url, timeout=10)
    except Exception:  # of its HTTP client, whichever that is
        return False
    return True

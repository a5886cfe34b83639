"""trackio: the local store below TRACKIO_DIR, which `trackio show` opens and `trackio sync` sends.

https://huggingface.co/docs/trackio
"""

import contextlib
import os
import sys

import trackio

from sharing.errors import ShareError
from sharing.replay import Replay

REMOTE = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL")
CONTENT = "shared.content"
UNFINISHED = " unfinished"
"""End of the name of a run until it is whole."""


class Trackio:
    def __init__(self) -> None:
        if named := [name for name in REMOTE if os.environ.get(name)]:
            raise ShareError(
                f"{named[0]} is set, and share writes to trackio's local store: unset it, then trackio sync"
            )

    def has(self, replay: Replay) -> bool:
        found = self.found(replay)
        states = [(run.config or {}).get(CONTENT) for run in found]
        return states == [replay.content] and not found[0].name.endswith(UNFINISHED)

    def put(self, replay: Replay) -> None:
        for run in self.found(replay):
            run.delete()
        with contextlib.redirect_stdout(sys.stderr):
            trackio.init(
                replay.project,
                name=whole(replay) + UNFINISHED,
                config={**replay.settings, CONTENT: replay.content},
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )
            for step in sorted({*replay.steps, *replay.pictures, replay.last_step}):
                pictures = {tag: trackio.Image(str(path)) for tag, path in replay.pictures.get(step, {}).items()}
                scores = replay.scores if step == replay.last_step else {}
                trackio.log({**replay.steps.get(step, {}), **scores, **pictures}, step=step)
            trackio.finish()
        for run in self.found(replay):  # its name says that it is whole
            run.rename(whole(replay))

    def found(self, replay: Replay) -> list:
        try:
            runs = trackio.Api().runs(replay.project)
        except ValueError:  # nothing was logged to this project yet
            return []
        return [run for run in runs if run.name.removesuffix(UNFINISHED).endswith(f" {replay.id}")]


def whole(replay: Replay) -> str:
    return f"{replay.name} {replay.id}"

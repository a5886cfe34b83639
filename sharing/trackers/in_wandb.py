"""Weights & Biases: with WANDB_MODE=offline a folder below WANDB_DIR, which `wandb sync` sends; else its server.

https://docs.wandb.ai/ref/python/init/
"""

import os
import shutil
from pathlib import Path

import wandb

from datasets.files import write_text
from sharing.replay import Replay

MARK = "shared.txt"
"""A file in an offline run's folder that holds the content of what was shared, once it is whole."""


class WeightsAndBiases:
    def has(self, replay: Replay) -> bool:
        return [read(folder / MARK) for folder in offline_folders(replay)] == [replay.content]

    def put(self, replay: Replay) -> None:
        for folder in offline_folders(replay):
            shutil.rmtree(folder)
        run = wandb.init(
            project=replay.project,
            id=replay.id,
            name=replay.name,
            config=dict(replay.settings),
            resume="allow",
            settings=wandb.Settings(
                silent=True, console="off", x_disable_stats=True, disable_git=True, save_code=False
            ),
        )
        with run:
            folder, offline = Path(run.dir).parent, run.offline
            for step in sorted({*replay.steps, *replay.pictures}):
                if step >= run.starting_step:  # what the server has already of this run
                    pictures = {tag: wandb.Image(str(path)) for tag, path in replay.pictures.get(step, {}).items()}
                    run.log({**replay.steps.get(step, {}), **pictures}, step=step)
            run.summary.update(dict(replay.scores))
        if offline:
            write_text(folder / MARK, replay.content)


def offline_folders(replay: Replay) -> list[Path]:
    place = Path(os.environ.get("WANDB_DIR") or ".")
    return sorted(
        folder for kind in (".wandb", "wandb") for folder in (place / kind).glob(f"offline-run-*-{replay.id}")
    )


def read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None

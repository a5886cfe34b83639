"""Whatever ends a run: it is heeded in every phase, and no process is left."""

import multiprocessing

import pytest
from killed_runs import Crash, crash, demanding_config, stopped_in_validation
from small_images import image_folder

from datasets.config import DataConfig
from trainers.config import OutputConfig, RunConfig, TrainConfig
from trainers.dry_run import dry_run
from trainers.run import train
from vit.config import ModelConfig


def test_a_dry_run_leaves_no_loader_process(tmp_path):
    config = RunConfig(
        model=ModelConfig(name="vit_micro_4", image_size=16),
        data=DataConfig(source=str(image_folder(tmp_path / "pets")), batch_size=4, workers=2),
        train=TrainConfig(epochs=2, device="cpu"),
        output=OutputConfig(output_dir=tmp_path, tb="scalars"),
    )
    dry_run(config)
    assert not multiprocessing.active_children()


def test_a_run_stopped_in_its_validation_leaves_no_loader_process(tmp_path):
    with pytest.raises(Crash), stopped_in_validation(6, crash):
        train(demanding_config(tmp_path, workers=2))
    assert not multiprocessing.active_children()

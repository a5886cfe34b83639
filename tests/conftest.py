"""What all tests share: one thread (so bits and timings do not depend on neighbours), where real data lies, and the
order in which files run."""

import gc
import importlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# Nothing heavy is imported here: pytest-xdist's first process reads this file too, and runs no test.
gc.disable()  # until everything is imported: what lives to the end need not be looked through again and again

# `make test` gives whole files to its processes: the long ones go first, so that none of them is left over at the end.
LONGEST = (
    "test_pretended_gpu",
    "test_trainers_outcome",
    "test_one_number",
    "test_trainers_pictures",
    "test_trainers_resume",
    "test_trainers_trackers",
    "test_commands_ensemble",
    "test_trainers_deadline",
    "test_trainers_run",
    "test_commands_export",
    "test_commands_clean",
    "test_vit_anatomy",
)


if os.environ.get("VIT_TEST_COMPLETE"):  # set where every package is there, and a test without one hides a hole

    def import_or_fail(modname: str, *args: Any, **kwargs: Any) -> Any:
        return importlib.import_module(modname)

    pytest.importorskip = import_or_fail


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(places)))


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


class BlankCanvas:
    """Stand-in for matplotlib's canvas: a white picture of the right size."""

    def __init__(self, figure: Any) -> None:
        self.figure = figure

    def draw(self) -> None:
        pass

    def buffer_rgba(self) -> Any:
        import numpy as np

        width, height = map(int, self.figure.bbox.size)
        return np.full((height, width, 4), 255, np.uint8)


@pytest.fixture(scope="module", autouse=True)
def pictures_are_drawn_where_a_test_looks_at_them(request: pytest.FixtureRequest) -> Iterator[None]:
    """Leave pictures blank, but in files marked `drawn`: drawing takes nine tenths of a tiny run. Figures are made
    everywhere, and so are their files; heat maps of one image, and measured on four."""
    from trainers.reporting import pictures
    from trainers.reporting.explanations import faithfulness
    from trainers.reporting.figures import results

    with pytest.MonkeyPatch.context() as patch:
        if request.node.get_closest_marker("drawn") is None:
            patch.setattr(results, "FigureCanvasAgg", BlankCanvas)
            patch.setattr(pictures, "SHOWN", 1)
            patch.setattr(faithfulness, "IMAGES", 4)
        yield


@pytest.fixture
def drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw pictures in one test of a file that leaves them blank."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    from trainers.reporting.figures import results

    monkeypatch.setattr(results, "FigureCanvasAgg", FigureCanvasAgg)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real images that VIT_TEST_DATA names; the test is skipped where there is none."""
    folder = os.environ.get("VIT_TEST_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("VIT_TEST_DATA names no folder of real images")
    return Path(folder)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def quick_disk() -> Iterator[None]:
    """Nothing here survives a power cut, so nothing waits for the disk; programs that tests start still do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def short_measurements() -> Iterator[None]:
    """The pace of a run is measured for a tenth of a second, not for one: no test needs it exactly."""
    from trainers.budget.pace import measure

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(measure.__kwdefaults__, "seconds", 0.1)
        yield


@pytest.fixture(scope="session", autouse=True)
def one_processor() -> Iterator[None]:
    """Runs of one command train one after the other in the test's process, unless `--jobs` says otherwise."""
    from trainers.multirun import sharing

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharing, "cpu_count", lambda: 1)
        yield


@pytest.fixture(scope="session", autouse=True)
def own_temporary_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What a killed process leaves (multiprocessing's empty folder, torchrun's logs) goes with the tests. The name is
    short, as a socket's may have a hundred letters."""
    tmp_path_factory.getbasetemp()  # which pytest keeps, stays where it is
    with tempfile.TemporaryDirectory(prefix="t") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", None)
        yield


@pytest.fixture(scope="module")
def quick_heads() -> Iterator[None]:
    """Cross-validate two penalties on two folds, for the tests of one file: none needs the best one."""
    from trainers.heads import linear

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linear, "PENALTIES", (0.1, 0.01))
        patch.setattr(linear, "FOLDS", 2)
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on three classes with random weights, for the tests of one file."""
    from small_run import make_run

    return make_run(tmp_path_factory.mktemp("made") / "run")


@pytest.fixture
def two_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchvision's vit_b_16 with two narrow layers: the same classes, a thousandth of the time."""
    from torchvision.models.vision_transformer import VisionTransformer

    def narrow(*, num_classes: int, image_size: int, **options: Any) -> Any:
        return VisionTransformer(image_size, 16, 2, 4, 32, 64, num_classes=num_classes, **options)

    monkeypatch.setattr("torchvision.models.vit_b_16", narrow)

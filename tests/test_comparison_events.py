"""The curves of a comparison in TensorBoard: of each arm its mean over the seeds and the two ends of its band."""

import numpy as np
import pytest
from small_comparison import arm_of, comparison_of
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar.layout_pb2 import Layout

from comparison.drawing import write_events

TAG, ENDS = "0_val_accuracy/10_labels", "9_val_accuracy_spread/10_labels"


def written(folder, *, seeds: int, steps: int = 3, **options):
    """Accuracies (seeds, 3) of an arm's seeds at each of three epochs, `steps` apart, and its events beside those of
    another arm."""
    other, arm = (
        arm_of(folder / "runs", name, np.ones((seeds, 4), bool), [0, 1, 2, 0], **options) for name in ("other", "plain")
    )
    values = np.random.default_rng(0).uniform(0.2, 0.9, (seeds, 3))
    for run, of_run in zip(arm, values, strict=True):
        for row, value in zip(run.history, of_run, strict=True):
            row |= {"val_accuracy": value, "step": steps * row["epoch"]}
    write_events(folder / "verdict", "plain", [], comparison_of((10, (other, arm))))
    return values, EventAccumulator(str(folder / "verdict" / f"plain_n{seeds}")).Reload()


def curve(events: EventAccumulator, tag: str) -> list[float]:
    return [point.value for point in events.Scalars(tag)]


def test_several_seeds_are_shown_from_the_lowest_to_the_highest_and_one_alone(tmp_path):
    values, events = written(tmp_path / "3", seeds=3)
    assert curve(events, TAG) == pytest.approx(values.mean(axis=0))
    assert curve(events, f"{ENDS}_low") == pytest.approx(values.min(axis=0))
    assert curve(events, f"{ENDS}_high") == pytest.approx(values.max(axis=0))
    verdict = EventAccumulator(str(tmp_path / "3" / "verdict")).Reload()
    layout = Layout.FromString(verdict.Tensors("custom_scalars__config__")[0].tensor_proto.string_val[0])
    (series,) = layout.category[0].chart[-1].margin.series
    assert [series.value, series.lower, series.upper] == [TAG, f"{ENDS}_low", f"{ENDS}_high"]
    _, events = written(tmp_path / "1", seeds=1)
    assert {tag for tag in events.Tags()["scalars"] if "accuracy" in tag} == {TAG}


def test_an_arm_of_half_the_batch_has_seen_as_many_images(tmp_path):
    """Twice the steps for the same images: over steps its curve would end twice as far to the right."""
    (first, second) = (
        written(tmp_path / str(batch), seeds=1, steps=12 // batch, options={"batch_size": batch})[1] for batch in (2, 4)
    )
    assert [point.step for point in first.Scalars(TAG)] == [point.step for point in second.Scalars(TAG)] == [0, 30, 60]

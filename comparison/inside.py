"""The page of the two leading arms as they learned, beside the report that links it."""

from dataclasses import replace
from pathlib import Path

from comparison.results import ConditionResult
from datasets.files import write_text
from inference.classifier import open_classifier
from inference.page import page_of, validation_pictures

PAGE = "page.html"


def write_page(result: ConditionResult, folder: Path) -> bool:
    """Of arms whose runs kept their weights on the way, as those of small ViTs do: the first seed of each, on four
    pictures. False where there are none, their images are gone, or a file is damaged: the report does without."""
    arms = [row.arm for row in sorted(result.arms, key=lambda row: row.scores.accuracy, reverse=True)]
    leading = [arm for arm in arms if (arm.runs[0].run_dir / "moments").is_dir()][:2]
    if not leading:
        return False
    try:
        opened = [(arm.name, open_classifier(str(arm.runs[0].run_dir), device="cpu")) for arm in leading]
        classifiers = [replace(classifier, source=name) for name, classifier in opened]
        text = page_of(classifiers, validation_pictures(classifiers[0])[::2])
    except (OSError, ValueError):
        return False
    write_text(folder / PAGE, text)
    return True

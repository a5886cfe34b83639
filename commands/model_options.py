"""The options of every command that opens a model. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inference.classifier import Classifier


@dataclass(frozen=True)
class WeightsOptions:
    """What a run's name or a file does not say."""

    model: str | None = None
    """Which model a weights file from elsewhere belongs to."""
    class_names: Path | None = None
    """Text file with one class name per line, for weights that carry none."""
    output_dir: Path = Path("runs")
    """Where `latest` is looked for."""

    def open(self, source: str, **options: Any) -> Classifier:
        """Open a run, an export or weights; `options` go to `open_classifier`."""
        from inference.classifier import open_classifier

        return open_classifier(source, **vars(self), **options)


@dataclass(frozen=True)
class ModelOptions(WeightsOptions):
    """What a run's name or a file does not say, and where the model runs."""

    device: str = "auto"
    """auto, cpu, cuda, cuda:N or mps."""
    trust: bool = False
    """Open a .pt2 file, which can run code that is in it."""

"""Objects that a program gives a run in place of options."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn
from torch.utils.data import DataLoader, Dataset

from common.errors import DataError, OptionError
from datasets.bundle import DataBundle
from trainers.config import RunConfig
from vit import ImageSpec
from vit.config import OWN_PREFIX


@dataclass(frozen=True)
class UserObjects:
    """A module, a Dataset or DataLoader for each split (or the bundle of `build_dataloaders`), and how its images are
    prepared, for `predict` and `export` to do the same."""

    model: nn.Module | None = None
    dataloaders: DataBundle | Mapping[str, Dataset | DataLoader] | None = None
    spec: ImageSpec | None = None

    def named(self, config: RunConfig) -> RunConfig:
        """Return the options with the names of what is given instead."""
        if self.model is not None:
            if config.model.trainable != "all":
                raise OptionError(
                    f"--trainable {config.model.trainable}: freeze a module of your own by requires_grad_(False)"
                )
            name = f"{OWN_PREFIX}{type(self.model).__name__}"
            config = config.changed(model={"name": name, "weights": "none"})
        if self.dataloaders is not None and not isinstance(self.dataloaders, DataBundle):
            from datasets.own_dataset import own_name, splits_of

            source = own_name(splits_of(self.dataloaders)["train"]).lower()
            config = config.changed(data={"source": source, "augment": "none"})
        return config

    def spec_of_module(self, config: RunConfig) -> ImageSpec:
        """Return the preprocessing for a module: as its Dataset gives the images, else by the application's values."""
        size = config.model.image_size
        if self.dataloaders is None or isinstance(self.dataloaders, DataBundle):
            return ImageSpec(image_size=size or ImageSpec.image_size, in_channels=config.model.in_channels)
        from datasets.own_dataset import first_image, splits_of

        image = first_image("train", splits_of(self.dataloaders)["train"])
        shape = tuple(getattr(image, "shape", ()))
        if len(shape) != 3:
            kind = f"{type(image).__name__} {shape or ''}".rstrip()
            source = config.data.source
            raise DataError(f"images of {source} are {kind}, not tensors (C, H, W), such as ToTensor() makes")
        channels, height, _width = shape
        return ImageSpec(image_size=height, mean=(0.0,) * channels, std=(1.0,) * channels, in_channels=channels)


NOTHING_GIVEN = UserObjects()

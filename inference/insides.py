"""The one hook of `inference/page/`, the page of a model from the inside: without that folder there are no pages."""

from datasets.errors import MissingPackage

try:
    from inference.page.document import SHOWN, named_pictures, page_of, validation_pictures
except ModuleNotFoundError as error:
    if "page" not in str(error.name).split("."):
        raise
    available = False
else:
    available = True

__all__ = ["SHOWN", "available", "named_pictures", "page_of", "require", "validation_pictures"]


def require() -> None:
    """Raises MissingPackage: the folder `inference/page` was taken out."""
    if not available:
        raise MissingPackage("this copy of the application has no folder inference/page: it makes no pages")

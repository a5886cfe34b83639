"""The one hook of `inference/slices/`: where a model is weak, by slices that are known. Without that folder nothing is
said about it."""

from typing import Any

try:
    from inference.slices.weak import weakness, weaknesses
except ModuleNotFoundError as error:
    if "slices" not in str(error.name).split("."):
        raise

    def weakness(*_: Any) -> Any:  # type: ignore[misc]
        return None

    def weaknesses(*_: Any) -> Any:  # type: ignore[misc]
        return []


__all__ = ["weakness", "weaknesses"]

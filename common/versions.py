"""Versions of the program and of packages: what a result, and all that is kept of it on disk, depends on."""

from importlib import metadata

from common.shell import NAME, VERSION


def versions_of(*packages: str) -> dict[str, str]:
    """Return the version of the program and of each of these packages. Raises PackageNotFoundError."""
    return {NAME: VERSION} | {name: metadata.version(name) for name in packages}

"""Run `serve RUN`: serve a page on this machine to drop images on."""

import re
from dataclasses import dataclass
from typing import Annotated

from commands.arguments import ModelOptions
from common.options import Arg, require, require_counts, require_finite

ORIGIN = re.compile(r"https?://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]+)?")


@dataclass(frozen=True)
class Options(ModelOptions):
    """Serve a page to try a model on: drop an image, see classes, probabilities and where it looked. Only this machine
    can reach it, unless --host says otherwise; nothing is fetched from elsewhere, kept or logged.
    """

    port: int = 7860
    """TCP port; 0 takes a free one."""
    host: Annotated[str, Arg(metavar="ADDRESS")] = "127.0.0.1"
    """Address to listen on. Any other than the default lets other machines in, without a password."""
    origin: Annotated[str | None, Arg(metavar="URL")] = None
    """Address of a proxy in front, such as https://name, as browsers spell it. The page is answered under it, too."""
    max_megabytes: float = 20.0
    """Largest file that is accepted, in megabytes."""
    top: int = 5
    """Number of classes shown."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_finite(self)
        require(self, "lie in 0 to 65535", lambda port: 0 <= port < 65_536, "port")
        require(self, "be above 0 and at most a million", lambda size: 0 < size <= 1e6, "max_megabytes")
        require_counts(self, "top")
        require(self, "be like https://name or http://name:8080", lambda url: bool(ORIGIN.fullmatch(url)), "origin")


def main(options: Options) -> int:
    from inference.serve import Server

    classifier = options.open()
    with Server(
        classifier, host=options.host, port=options.port, max_megabytes=options.max_megabytes, top=options.top
    ) as server:
        server.origin = options.origin or ""
        open_to_all = [] if server.only_loopback else [f"note: every machine that reaches {options.host} can use it"]
        server.serve_until_interrupted(f"{classifier.source} on {server.url}  (Ctrl-C ends it)", *open_to_all)
    return 0

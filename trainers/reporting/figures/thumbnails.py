"""Small pictures inside a page: as data URIs, which need no file and no request."""

import base64
import io

from PIL import Image

SMALL = 96  # pixels; up to here a picture is kept losslessly


def thumbnail(image: Image.Image, side: int) -> str:
    """Encode a picture of at most `side` pixels as a data URI."""
    image = image.convert("RGB")
    lossless = max(image.size) <= SMALL
    image.thumbnail((side, side))
    content = io.BytesIO()
    if lossless:
        image.save(content, "PNG", optimize=True)
    else:
        image.save(content, "JPEG", quality=85)
    return data_uri(content.getvalue(), "png" if lossless else "jpeg")


def data_uri(content: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode('ascii')}"

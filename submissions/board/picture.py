"""The picture of a page, which other sites show beside a link to it: the bars of a board, one entry's in colour.

Such a site shows the title and the description beside it, and takes no SVG.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

WIDTH_PX, HEIGHT_PX, MARGIN_PX = 600, 315, 24
MOST_BARS = 9
COLOURS = bytes.fromhex("fdfdfb b9c9e4 1b55b8")
"""The paper, the bars of others, the bar of the entry: the pages' own in daylight."""


def bars(values: Sequence[float], own: int | None) -> bytes:
    """A PNG of bars from zero, the largest first. own: the index of the bar in colour; None means the first.

    values: descending. Of many bars those beside the one in colour are drawn.
    """
    own = own or 0
    first = max(0, min(own - MOST_BARS // 2, len(values) - MOST_BARS))
    shown = values[first : first + MOST_BARS]
    pixels = np.zeros((HEIGHT_PX, WIDTH_PX), np.uint8)
    step = (HEIGHT_PX - 2 * MARGIN_PX) // MOST_BARS
    for index, value in enumerate(shown):
        top = MARGIN_PX + index * step
        length = max(2, round(value / values[0] * (WIDTH_PX - 2 * MARGIN_PX))) if values[0] else 2
        pixels[top : top + step * 2 // 3, MARGIN_PX : MARGIN_PX + length] = 2 if first + index == own else 1
    return _png(pixels)


def _png(pixels: npt.NDArray[np.uint8]) -> bytes:
    """Pixels of a palette as a file (ISO/IEC 15948)."""
    height, width = pixels.shape
    lines = np.hstack((np.zeros((height, 1), np.uint8), pixels))  # each begins with its filter: none
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"PLTE", COLOURS), (b"IDAT", zlib.compress(lines.tobytes(), 6)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*chunk) for chunk in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

"""Pictures in SVG, of lines and words only. The same numbers give the same bytes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal
from xml.sax.saxutils import escape


def at(value: float) -> str:
    """A coordinate, to a tenth of a pixel."""
    return f"{round(value, 1) + 0.0:g}"


def text(x: float, y: float, words: str, anchor: Literal["start", "middle", "end"] = "start") -> str:
    """Words whose base line is at y."""
    return f'<text x="{at(x)}" y="{at(y)}" text-anchor="{anchor}">{escape(words)}</text>'


def document(width: float, height: float, style: str, parts: Iterable[str]) -> str:
    """The file's content; `style`: CSS. White below everything, for pages that are dark."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{at(width)}" height="{at(height)}" '
        f'viewBox="0 0 {at(width)} {at(height)}" font-family="sans-serif" font-size="11">'
    )
    return "\n".join(
        (head, f"<style>{style}</style>", '<rect width="100%" height="100%" fill="#fff"/>', *parts, "</svg>\n")
    )

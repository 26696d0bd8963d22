"""How many bytes of text one token can stand for, so that a text that is too long is refused before it is encoded."""

from __future__ import annotations

import json
from typing import Any, Final

from tokenizers import Tokenizer, pre_tokenizers

NFC_SHRINKS_MAX: Final = 4
"""Normal form C never makes fewer than a fourth of a text's bytes."""
_CUTTERS: Final = frozenset({"ByteLevel", "Digits", "Punctuation", "Split"})
"""What cuts a text into words and drops nothing, unless it is told to."""


def token_bytes_max(tokenizer: Tokenizer) -> int | None:
    """The most bytes of UTF-8 that become one token, or None where that has no limit.

    It has one for byte-level BPE, which the large models have: each byte is a character of some token's name. Others
    make one unknown token of a word of any length, drop what they do not know, or collapse white space.
    """
    settings = json.loads(tokenizer.to_str())
    model, added = settings["model"], settings["added_tokens"]
    cutters = _members(settings["pre_tokenizer"], "pretokenizers")
    normalizers = _members(settings["normalizer"], "normalizers")
    if (
        model["type"] != "BPE"
        or not any(c["type"] == "ByteLevel" for c in cutters)
        or any(c["type"] not in _CUTTERS or c.get("behavior") == "Removed" for c in cutters)
        or any(n["type"] != "NFC" for n in normalizers)
        or not model["vocab"].keys() >= set(pre_tokenizers.ByteLevel.alphabet())
        or any(t["lstrip"] or t["rstrip"] for t in added)
    ):
        return None
    longest = max(max(map(len, model["vocab"])), *(len(t["content"].encode()) for t in added), 1)
    return longest * (NFC_SHRINKS_MAX if normalizers else 1)


def _members(part: dict[str, Any] | None, name: str) -> list[dict[str, Any]]:
    """A part of a tokenizer's settings, or the parts in it."""
    if part is None:
        return []
    return [m for inner in part[name] for m in _members(inner, name)] if part["type"] == "Sequence" else [part]

"""What an emulated model must answer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from wavepp.stage.model.fingerprints import extend


def emulated_answer(prompt_tokens: Sequence[int], n: int, vocab: int) -> list[int]:
    """Its `n` tokens, from the prompt alone."""
    last = extend(np.uint64(0), np.asarray(prompt_tokens, dtype=np.uint32), 0)[-1]
    answer: list[int] = []
    for position in range(len(prompt_tokens), len(prompt_tokens) + n):
        answer.append(int(last) % vocab)
        last = extend(last, np.asarray(answer[-1:], dtype=np.uint32), position)[-1]
    return answer

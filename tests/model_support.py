"""A small pipeline of stage models that tests drive directly, without links or scheduling."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wavepp.core.wire.types import NamedTensor
from wavepp.stage.model.base import Job, JobChunk, JobResult, Sampling, StageModel
from wavepp.stage.model.factory import ModelOptions, open_stage_model
from wavepp.stage.model.runner import TorchStage

BLOCK_TOKENS = 16


def token_bytes(tokens: Sequence[int]) -> bytes:
    return np.asarray(tokens, dtype="<u4").tobytes()


def open_stages(
    model: Path | str,
    cuts: Sequence[int],
    *,
    runner: Any = "fast",
    dtype: str = "fp32",
    blocks: int = 64,
    block_tokens: int = BLOCK_TOKENS,
    attention: str = "auto",
) -> list[StageModel]:
    """Stages between neighbouring `cuts`, e.g. (0, 2, 4)."""
    return [
        open_stage_model(
            ModelOptions(
                model=str(model),
                stage=stage,
                stages=len(cuts) - 1,
                first_layer=first,
                last_layer=last,
                blocks=blocks,
                block_tokens=block_tokens,
                dtype=dtype,
                runner=runner,
                attention=attention,
                precision="highest",
            )
        )
        for stage, (first, last) in enumerate(pairwise(cuts))
    ]


class Recorder:
    """Wraps the forward of a last stage: keeps the logits of all rows of the latest job."""

    def __init__(self, stage: StageModel) -> None:
        assert isinstance(stage, TorchStage)
        inner: Any = stage._forward
        assert inner is not None
        self._inner = inner
        self.logits = torch.empty(0)
        stage._forward = self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def layers(self, hidden: Tensor, batch: Any) -> Tensor:
        out: Tensor = self._inner.layers(hidden, batch)
        self.logits = self._inner.head(out[: batch.plan.rows]).clone()
        return out


class Pipeline:
    """Runs waves of chunks through all stages; a chunk is (grant, start, tokens, table)."""

    def __init__(self, stages: Sequence[StageModel], *, record: bool = False) -> None:
        self.stages = list(stages)
        self.recorder = Recorder(self.stages[-1]) if record else None
        self._wave = 0

    def wave(
        self, chunks: Sequence[tuple[int, int, Sequence[int], Sequence[int]]], sampling: Sampling | None = None
    ) -> list[JobResult]:
        """Results of all stages. Rows of grants that fail on a stage are not offered to the next one."""
        self._wave += 1
        tokens: bytes | None = b"".join(token_bytes(c[2]) for c in chunks)
        tensors: tuple[NamedTensor, ...] = ()
        alive, results = list(chunks), []
        for index, stage in enumerate(self.stages):
            row, jobs = 0, []
            last = index == len(self.stages) - 1
            for grant, start, own, table in alive:
                jobs.append(JobChunk(grant, start, len(own), tuple(table), row, sampling if last else None))
                row += len(own)
            result = stage.run(Job(self._wave, tuple(jobs), row, tokens, tensors))
            results.append(result)
            failed = {f.grant for f in result.failed}
            alive = [c for c in alive if c[0] not in failed]
            tokens, tensors = None, result.tensors
        return results

    def prefill(
        self,
        prompt: Sequence[int],
        table: Sequence[int],
        chunk: int,
        *,
        start: int = 0,
        grant: int = 1,
        sampling: Sampling | None = None,
    ) -> tuple[JobResult, Tensor]:
        """Chunks [start, len(prompt)) on a grid of `chunk`; the last stage's last result and the logits of all
        rows that were computed (empty without a recorder)."""
        logits, result = [], None
        while start < len(prompt):
            stop = min(len(prompt), (start // chunk + 1) * chunk)
            result = self.wave([(grant, start, prompt[start:stop], table)], sampling)[-1]
            if self.recorder is not None:
                logits.append(self.recorder.logits)
            start = stop
        assert result is not None
        return result, torch.cat(logits) if logits else torch.empty(0)

    def generate(self, prompt: Sequence[int], table: Sequence[int], chunk: int, count: int) -> list[int]:
        """Greedy continuation."""
        greedy = Sampling()
        result, _ = self.prefill(prompt, table, chunk, sampling=greedy)
        answer = [result.samples[1].token]
        while len(answer) < count:
            position = len(prompt) + len(answer) - 1
            step = self.wave([(1, position, answer[-1:], table)], greedy)[-1]
            answer.append(step.samples[1].token)
        return answer

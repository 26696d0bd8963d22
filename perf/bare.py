"""What a prefill costs without the mesh: the stage's own model runner, or plain transformers, alone in a process.

Prompts go one after another: neither gains anything from several at once.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from perf.clusters import BLOCK_TOKENS

Kind = Literal["runner", "transformers"]
Run = Callable[[bytes, int], None]
Begin = Callable[["Work"], Run]

START_TIMEOUT_S: Final = 120.0
WORK_TIMEOUT_S: Final = 600.0
TOKEN_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class Work:
    """Prompts (token bytes) that begin with the same `shared_tokens` tokens, which are computed once, untimed, before
    the first one, unless they are `computed`: the work before was a prompt that began with them.
    """

    prompts: tuple[bytes, ...]
    shared_tokens: int
    computed: bool = False


@dataclass(frozen=True, slots=True)
class Done:
    """Seconds of each prompt, and the CPU time of all of them together, on all threads."""

    seconds: list[float]
    cpu_s: float


class BareProcess:
    """A process with the whole model on `threads` threads. `submit`, then `done`; `close` at the end."""

    def __init__(self, kind: Kind, model: Path, threads: int, wave_tokens_max: int, prompt_tokens_max: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._ours, theirs = context.Pipe()
        arguments = (kind, model, threads, wave_tokens_max, prompt_tokens_max, theirs)
        self._process = context.Process(target=_main, args=arguments, daemon=True)
        self._process.start()

    @property
    def pid(self) -> int:
        """Of the process."""
        assert self._process.pid is not None
        return self._process.pid

    def wait_ready(self) -> None:
        """Return when the model is loaded."""
        self._receive(START_TIMEOUT_S)

    def submit(self, work: Work) -> None:
        """Begin. Several processes may work at once."""
        self._ours.send(work)

    def done(self) -> Done:
        """The outcome of the work that was submitted."""
        outcome: Done = self._receive(WORK_TIMEOUT_S)
        return outcome

    def close(self) -> None:
        """End the process."""
        with contextlib.suppress(BrokenPipeError):  # it died; whoever used it has heard
            self._ours.send(None)
        self._process.join(START_TIMEOUT_S)

    def _receive(self, timeout_s: float) -> Any:
        if not self._ours.poll(timeout_s):
            raise TimeoutError(f"a bare process said nothing for {timeout_s:g} s")
        try:
            return self._ours.recv()
        except EOFError as error:
            raise RuntimeError("a bare process died; what it said is above") from error


def _main(
    kind: Kind, model: Path, threads: int, wave_tokens_max: int, prompt_tokens_max: int, peer: Connection
) -> None:
    # Threads that wait must not spin: the others are being measured then.
    os.environ["OMP_WAIT_POLICY"] = "passive"
    if kind == "runner":
        begin = _open_runner(model, threads, wave_tokens_max, prompt_tokens_max)
    else:
        begin = _open_transformers(model, threads)
    peer.send("ready")
    while (work := peer.recv()) is not None:
        run = begin(work)
        seconds, cpu_before_s = [], time.process_time()
        for prompt in work.prompts:
            began = time.perf_counter()
            run(prompt, work.shared_tokens)
            seconds.append(time.perf_counter() - began)
        peer.send(Done(seconds, time.process_time() - cpu_before_s))


def _open_runner(model: Path, threads: int, wave_tokens_max: int, prompt_tokens_max: int) -> Begin:
    from wavepp.core.ids import GrantId
    from wavepp.stage.model.base import Job, JobChunk, Sampling
    from wavepp.stage.model.factory import ModelOptions, open_stage_model, plan_model

    plan = plan_model(str(model), 1)
    blocks = -(-prompt_tokens_max // BLOCK_TOKENS)
    stage = open_stage_model(
        ModelOptions(
            model=str(model),
            stage=0,
            stages=1,
            first_layer=0,
            last_layer=plan.layers,
            blocks=blocks,
            block_tokens=BLOCK_TOKENS,
            threads=threads,
            wave_tokens_max=wave_tokens_max,
        )
    )
    table = tuple(range(blocks))

    def compute(prompt: bytes, start: int, end: int) -> None:
        """Chunks of at most M tokens, as the mesh cuts them; the next token is chosen after the last."""
        for at in range(start, end, wave_tokens_max):
            length = min(wave_tokens_max, end - at)
            last = at + length == end
            blocks_in_use = table[: -(-(at + length) // BLOCK_TOKENS)]
            chunk = JobChunk(GrantId(1), at, length, blocks_in_use, 0, Sampling() if last else None)
            tokens = prompt[at * TOKEN_BYTES : (at + length) * TOKEN_BYTES]
            result = stage.run(Job(1, (chunk,), length, tokens))
            if result.failed:
                raise RuntimeError(f"the runner failed: {result.failed}")

    def reused(shared_tokens: int) -> int:
        return shared_tokens // BLOCK_TOKENS * BLOCK_TOKENS

    def begin(work: Work) -> Run:
        if work.shared_tokens and not work.computed:
            compute(work.prompts[0], 0, reused(work.shared_tokens))
        return lambda prompt, shared: compute(prompt, reused(shared), len(prompt) // TOKEN_BYTES)

    return begin


def _open_transformers(model: Path, threads: int) -> Begin:
    import torch
    from transformers import AutoModelForCausalLM, DynamicCache
    from transformers.utils import logging

    from wavepp.stage.model.compute import choose_compute

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    torch.set_num_threads(threads)
    network: Any = AutoModelForCausalLM.from_pretrained(model, dtype=choose_compute("auto").dtype)
    network.eval()

    @torch.inference_mode()
    def compute(tokens: bytes, cache: Any) -> None:
        ids = torch.from_numpy(np.frombuffer(tokens, dtype="<u4").astype(np.int64))[None]
        logits = network(ids, cache=cache, use_cache=True, logits_to_keep=1).logits
        int(logits[0, -1].argmax())

    def begin(work: Work) -> Run:
        if not work.shared_tokens:
            return lambda prompt, shared: compute(prompt, None)
        cache = DynamicCache(config=network.config)
        compute(work.prompts[0][: work.shared_tokens * TOKEN_BYTES], cache)

        def run(prompt: bytes, shared: int) -> None:
            own = prompt[shared * TOKEN_BYTES :]
            compute(own, cache)
            cache.crop(-(len(own) // TOKEN_BYTES))

        return run

    return begin


def run_together(processes: Sequence[BareProcess], work: Work) -> list[Done]:
    """The prompts dealt out to processes that work at once; the outcome of each."""
    count = len(processes)
    for i, process in enumerate(processes):
        process.submit(replace(work, prompts=work.prompts[i::count]))
    return [process.done() for process in processes]

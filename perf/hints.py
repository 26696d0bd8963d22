"""What the control plane costs: hint probe, prefix keys, wave planning, frame headers, router CPU per request."""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from perf.clusters import BLOCK_TOKENS, VOCABULARY, cluster, emulated, parser, pids_of
from perf.load import Prompts, run_closed_loop
from perf.machine import LoadWatch, cpu_s
from perf.report import Cell, Goal, finish, table
from perf.stats import percentile

from wavepp.core.directory.hints import HintIndex
from wavepp.core.directory.reuse_endpoint import endpoint_max
from wavepp.core.ids import GrantId, PipelineEpoch, StageIndex, WaveId
from wavepp.core.keys import Namespace, prefix_keys
from wavepp.core.limits import KEY_BYTES
from wavepp.core.waves.planner import WavePlanner
from wavepp.core.waves.policies import MpuPolicy
from wavepp.core.waves.types import PlannerConfig, StepTime
from wavepp.core.wire.types import FrameChunk, TensorSpec
from wavepp.core.wire.wave_header import FrameHeader

LONG_TOKENS: Final = 262_144
INDEX_KEYS: Final = 1_000_000
PROBE_GOAL_US: Final = 10.0
KEYS_GOAL_MS: Final = 5.0
HEAD: Final = ("what", "times", "least us", "p50 us", "p99 us")


def timed_us(work: Callable[[], object], times: int) -> list[float]:
    """Microseconds of every call."""
    taken = []
    for _ in range(times):
        began = time.perf_counter_ns()
        work()
        taken.append((time.perf_counter_ns() - began) / 1e3)
    return taken


def probe_us(times: int, index_keys: int, seed: int) -> list[float]:
    """Probes for prompts whose first part, of any length, is held; the index is too large for the CPU's caches."""
    rng = random.Random(seed)
    index = HintIndex(2)
    index.set_known(StageIndex(0))
    index.set_known(StageIndex(1))
    blocks = LONG_TOKENS // BLOCK_TOKENS
    prompts: list[bytes] = []
    while index.sizes()[0] < index_keys:
        keys = rng.randbytes(blocks * KEY_BYTES)
        index.mark_held(keys[: rng.randrange(blocks + 1) * KEY_BYTES])
        prompts.append(keys)
    highest = endpoint_max(LONG_TOKENS, BLOCK_TOKENS)
    taken = []
    for _ in range(times):
        keys = rng.choice(prompts)
        taken += timed_us(lambda keys=keys: index.probe(keys, BLOCK_TOKENS, BLOCK_TOKENS, highest), 1)  # type: ignore[misc]
    return taken


def keys_us(times: int, tokens: int, seed: int) -> list[float]:
    """Prefix keys of a prompt."""
    namespace = Namespace("fingerprint", "bfloat16", BLOCK_TOKENS, None, "a tenant's salt")
    prompt = Prompts(VOCABULARY, seed).fresh(tokens)
    return timed_us(lambda: prefix_keys(namespace, prompt), times)


def plan_us(requests: int, seed: int) -> list[float]:
    """Every wave of `requests` waiting ones, with the pipeline full."""
    rng = random.Random(seed)
    config = PlannerConfig(2, 512, 256, BLOCK_TOKENS, BLOCK_TOKENS)
    policy = MpuPolicy(stages=2, wave_tokens_max=512, wave_tokens_min=256, block_tokens=BLOCK_TOKENS)
    planner = WavePlanner(config, policy)
    for grant in range(requests):
        planner.add(GrantId(grant), 0, rng.choice((40, 200, 410, 1024, 4096)), False)
    taken = []
    while planner.has_work():
        taken += timed_us(lambda: planner.plan(3, 1), 1)
    return taken


def header_us(times: int, chunks: int) -> tuple[list[float], list[float]]:
    """Encoding and decoding the header of a wave."""
    spec = TensorSpec("hidden", "bfloat16", (64 * chunks, 576))
    header = FrameHeader(
        epoch=PipelineEpoch(3),
        wave=WaveId(123_456),
        chunks=tuple(FrameChunk(GrantId((3 << 32) + i), 4096, 64, last=True) for i in range(chunks)),
        ended=tuple(GrantId((3 << 32) + chunks + i) for i in range(chunks)),
        tensors=(spec,),
        steps=(StepTime(StageIndex(0), time.time_ns(), 400_000_000, 1_000_000, 64 * chunks),),
        issued_ns=time.time_ns(),
    )
    encoded = header.encode()
    return timed_us(header.encode, times), timed_us(lambda: FrameHeader.decode(encoded, spec.nbytes), times)


def router_cpu(tokens: int, requests: int, cached: bool, wave_tokens_max: int, seed: int) -> tuple[float, float]:
    """Router's CPU time per request in milliseconds, and waves per request; 2 emulated stages, 4 clients."""
    blocks = 6 * -(-max(tokens, LONG_TOKENS) // BLOCK_TOKENS)
    flags = ("--blocks", str(blocks), "--wave-tokens-max", str(wave_tokens_max))
    with tempfile.TemporaryDirectory() as home, cluster(emulated(Path(home), 2, 0.0), 2, stage=flags) as started:
        prompts = Prompts(VOCABULARY, seed)
        prefix = prompts.fresh(int(0.9 * tokens) // BLOCK_TOKENS * BLOCK_TOKENS)
        run_closed_loop(started.address, 1, iter([prefix + prompts.fresh(BLOCK_TOKENS)]))
        pid = pids_of(started)["router"]
        sent = [prompts.cached([prefix], tokens) if cached else prompts.fresh(tokens) for _ in range(requests)]
        before_s = cpu_s(pid)
        answered = run_closed_loop(started.address, 4, iter(sent))
        used_ms = 1e3 * (cpu_s(pid) - before_s)
    return used_ms / requests, sum(a.response.waves for a in answered) / requests


def main() -> None:
    """Measure, print, write."""
    arguments = _arguments()
    quick, seed = arguments.quick, arguments.seed
    watch = LoadWatch()
    times = 200 if quick else 20_000
    index_keys = 50_000 if quick else INDEX_KEYS
    probe = probe_us(times, index_keys, seed)
    keys = keys_us(10 if quick else 200, LONG_TOKENS, seed)
    micro = {
        f"hint probe, {LONG_TOKENS:,} tokens, {index_keys:,} keys": probe,
        f"prefix keys, {LONG_TOKENS:,} tokens": keys,
        "prefix keys, 4,096 tokens": keys_us(max(100, times // 20), 4096, seed),
        "plan(), 1,000 requests wait": plan_us(1000, seed),
    }
    for chunks in (4, 128):
        encode, decode = header_us(max(100, times // 20), chunks)
        micro[f"frame header of {chunks} chunks, encode"] = encode
        micro[f"frame header of {chunks} chunks, decode"] = decode
    rows: list[list[Cell]] = [
        [w, len(us), min(us), statistics.median(us), percentile(us, 0.99)] for w, us in micro.items()
    ]
    print(table(HEAD, rows), "\n")
    cpu = _router_rows(quick, seed)
    print("router, beside 2 emulated stages whose steps take no time:")
    print(table(("tokens", "cached", "M", "requests", "waves/request", "CPU ms/request"), cpu))
    goals = [
        Goal("hint probe, median", statistics.median(probe), PROBE_GOAL_US, "us"),
        Goal("prefix keys, median", statistics.median(keys) / 1e3, KEYS_GOAL_MS, "ms"),
    ]
    finish("hints", vars(arguments), {"micro_us": rows, "router": cpu}, goals, watch.load())


def _row(what: str, us: list[float]) -> list[Cell]:
    return [what, len(us), min(us), statistics.median(us), percentile(us, 0.99)]


def _router_rows(quick: bool, seed: int) -> list[list[Cell]]:
    rows: list[list[Cell]] = []
    cases = [(4096, 300, True, 512), (4096, 300, False, 512), (4096, 300, False, 8192)]
    cases += [(LONG_TOKENS, 8, True, 8192), (LONG_TOKENS, 8, False, 8192), (LONG_TOKENS, 8, False, 512)]
    for tokens, requests, cached, wave_tokens_max in cases[:1] if quick else cases:
        count = 20 if quick else requests
        cpu_ms, waves = router_cpu(tokens, count, cached, wave_tokens_max, seed)
        rows.append([tokens, "90 %" if cached else "0 %", wave_tokens_max, count, waves, cpu_ms])
    return rows


def _arguments() -> argparse.Namespace:
    return parser(__doc__).parse_args()


if __name__ == "__main__":
    main()

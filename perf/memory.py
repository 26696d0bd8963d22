"""Where each stage's memory goes, stated against resident, and whether it grows over many requests."""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass
from typing import Final

from perf.clusters import BLOCK_TOKENS, add_model, cluster, model_info, model_path, parser, status
from perf.load import Prompts, run_closed_loop
from perf.machine import LoadWatch
from perf.report import Cell, Goal, finish, table

from wavepp.v1 import prefill_pb2

MB: Final = 1e6
UNEXPLAINED_GOAL_MB: Final = 100.0
GROWTH_GOAL_MB: Final = 10.0
CLIENTS: Final = 8
SHORT_TOKENS: Final = 96


@dataclass(frozen=True, slots=True)
class Resident:
    """One stage, in bytes. `activation_max`: what the stage says that its largest wave may need."""

    stage: int
    weights: int
    pools: int
    imports: int
    activation_max: int
    loaded: int
    warm: int
    end: int

    @property
    def unexplained(self) -> int:
        """Resident at the end beyond everything that the stage states."""
        return self.end - self.weights - self.pools - self.imports - self.activation_max

    @property
    def grown(self) -> int:
        """Over the requests, once all pools and the largest wave had been used."""
        return self.end - self.warm

    def row(self) -> list[Cell]:
        """For the table, in MB."""
        beside = self.end - self.weights - self.pools - self.imports
        parts = (self.weights, self.pools, self.imports, self.activation_max, self.loaded, self.warm, self.end)
        return [str(self.stage), *(round(b / MB, 1) for b in (*parts, beside, self.unexplained, self.grown))]


HEAD: Final = (
    *("stage", "weights", "pools", "imports", "a wave (bound)", "rss loaded", "rss warm", "rss end"),
    *("end - (w + p + i)", "unexplained", "growth"),
)


def warm_up(address: str, blocks: int, prompts: Prompts) -> None:
    """Touch every block, and run the largest wave behind the longest prefix that fits, as often as waves overlap."""
    tokens_max = min(model_info(address).tokens_max - 1, blocks * BLOCK_TOKENS)
    run_closed_loop(address, 1, iter([prompts.fresh(tokens_max - BLOCK_TOKENS) for _ in range(2)]))
    run_closed_loop(address, CLIENTS, iter([prompts.fresh(SHORT_TOKENS) for _ in range(4 * CLIENTS)]))


def main() -> None:
    """Measure, print, write."""
    arguments = _arguments()
    requests = 40 if arguments.quick else arguments.requests
    watch = LoadWatch()
    flags = ("--blocks", str(arguments.blocks), "--wave-tokens-max", str(arguments.wave_tokens_max))
    with cluster(str(model_path(arguments.model)), arguments.stages, stage=flags) as started:
        prompts = Prompts(model_info(started.address).vocab_size, arguments.seed)
        loaded = status(started.address)
        warm_up(started.address, arguments.blocks, prompts)
        warm = status(started.address)
        samples: list[tuple[int, list[int]]] = [(0, _rss(warm))]
        step = max(1, requests // 10)
        for done in range(0, requests, step):
            batch = [prompts.fresh(SHORT_TOKENS) for _ in range(min(step, requests - done))]
            run_closed_loop(started.address, CLIENTS, iter(batch))
            samples.append((done + len(batch), _rss(status(started.address))))
    stages = [
        Resident(
            stage=s.stage,
            weights=s.weights_bytes,
            pools=s.pools_bytes,
            imports=s.imports_bytes,
            activation_max=s.activation_bytes_max,
            loaded=s.rss_bytes,
            warm=_rss(warm)[s.stage],
            end=samples[-1][1][s.stage],
        )
        for s in loaded.stages
    ]
    print(f"MB (10^6 bytes); {requests} requests of {SHORT_TOKENS} tokens, pools of {arguments.blocks} blocks")
    print(table(HEAD, [s.row() for s in stages]), "\n")
    print(table(("requests", *(f"stage {s.stage} rss" for s in stages)), [_sample_row(*s) for s in samples]))
    goals = [Goal(f"stage {s.stage}, unexplained", s.unexplained / MB, UNEXPLAINED_GOAL_MB, "MB") for s in stages]
    goals += [Goal(f"stage {s.stage}, growth", s.grown / MB, GROWTH_GOAL_MB, "MB") for s in stages]
    results = {"stages": [asdict(s) for s in stages], "rss_after_requests": samples}
    finish("memory", vars(arguments), results, goals, watch.load())


def _rss(answer: prefill_pb2.GetStatusResponse) -> list[int]:
    return [s.rss_bytes for s in sorted(answer.stages, key=lambda s: s.stage)]


def _sample_row(requests: int, rss: list[int]) -> list[Cell]:
    return [requests, *(round(b / MB, 1) for b in rss)]


def _arguments() -> argparse.Namespace:
    made = parser(__doc__)
    add_model(made)
    made.add_argument("--stages", type=int, default=2)
    made.add_argument("--requests", type=int, default=1000)
    made.add_argument("--blocks", type=int, default=128, help="of each pool; few, so that all are used soon")
    made.add_argument("--wave-tokens-max", type=int, default=512, help="M")
    return made.parse_args()


if __name__ == "__main__":
    main()

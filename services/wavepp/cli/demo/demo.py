"""`wavepp demo`: a real model, two stages, eight questions about one long text, cold and warm, checked."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from wavepp.cli.models.model import MODELS_DIR
from wavepp.cli.terminal import EXIT_FAILED, EXIT_INTERRUPTED, errors_as_lines, fail, stderr, stdout

if TYPE_CHECKING:
    from wavepp.cli.local.options import UpOptions
    from wavepp.cli.mesh.client import Answer, MeshClient
    from wavepp.v1 import prefill_pb2

DEMO_DIR: Final = Path(".wavepp/demo")
STAGES: Final = 2
ANSWER_TOKENS: Final = 16
CONCURRENCY: Final = 2
"""As many as stages: both have work, and no prompt waits long for another."""

SAME_PROMPTS: Final = 3
SAME_GRID_TOKENS: Final = 256
"""M of the comparison. On a fixed grid reuse endpoints are multiples of it: chunks behind the endpoint, and those that
filled the cache before it, are then cut as without reuse, and the same bits are the only right result."""

SAME_BLOCKS: Final = 256
"""Room for all its prompts, uncached ones included."""

READY_TIMEOUT_S: Final = 300.0
DEADLINE_S: Final = 300.0


def demo(
    model: Annotated[str, typer.Option(help="Checkpoint directory, hub id, or smollm2.")] = "smollm2",
    models_dir: Annotated[Path, typer.Option(help="Where fetched models are.")] = MODELS_DIR,
    demo_dir: Annotated[Path, typer.Option("--dir", help="Logs, etcd's data, and the timeline file.")] = DEMO_DIR,
) -> None:
    """Run a mesh with a real model on this machine, show what prefix reuse does, and check the answers."""
    from wavepp.cli.local.signals import StopRequestedError

    began = time.monotonic()
    console = stdout()
    with errors_as_lines("demo"):
        try:
            wrong = run_demo(model, models_dir, demo_dir)
        except StopRequestedError:
            fail("demo", "interrupted", EXIT_INTERRUPTED)
    for line in wrong:
        console.print(f"WRONG: {line}", soft_wrap=True)
    if wrong:
        fail("demo", f"{len(wrong)} checks failed", EXIT_FAILED)
    console.print(f"took {time.monotonic() - began:.0f} s")
    console.print("demo ok")


def run_demo(model: str, models_dir: Path, demo_dir: Path) -> list[str]:
    """Both meshes, one after the other; what is wrong, in words. Raises WaveppError when something cannot run."""
    from wavepp.cli.local.options import UpOptions

    with mesh(UpOptions(model, STAGES, port=0, run_dir=demo_dir / "mesh", models_dir=models_dir)) as client:
        wrong = cold_and_warm(client, demo_dir / "timeline.json")
    comparison = UpOptions(
        model,
        STAGES,
        port=0,
        run_dir=demo_dir / "fp32",
        models_dir=models_dir,
        dtype="fp32",
        chunk_grid="fixed",
        wave_tokens_max=SAME_GRID_TOKENS,
        blocks=SAME_BLOCKS,
    )
    with mesh(comparison) as client:
        wrong += cached_and_uncached(client)
    return wrong


@contextmanager
def mesh(options: UpOptions) -> Iterator[MeshClient]:
    """A mesh as `wavepp up` would start it, and a client. Raises StopRequestedError when a signal comes."""
    from wavepp.cli.local.cluster import LocalCluster
    from wavepp.cli.local.planning import plan_up
    from wavepp.cli.local.run_dir import own_run_dir
    from wavepp.cli.local.signals import StopSignals
    from wavepp.cli.mesh.client import MeshClient

    console = stdout()
    plan = plan_up(options, lambda step: stderr().print(step))
    with own_run_dir(options.run_dir, lambda line: stderr().print(line)), StopSignals() as signals:
        began = time.monotonic()
        with LocalCluster(plan.spec) as cluster:
            signals.on_second = cluster.kill
            cluster.wait_ready(READY_TIMEOUT_S, signals.check)
            with MeshClient(cluster.address) as client:
                info = client.model_info()
                console.print(
                    f"mesh of {info.stages} stages ready after {time.monotonic() - began:.1f} s: {info.model}, "
                    f"{info.dtype}, blocks of {info.block_tokens} tokens, waves up to {info.wave_tokens_max}",
                    soft_wrap=True,
                )
                signals.on_first = client.cancel_all
                try:
                    yield client
                finally:
                    # After a signal the error that it caused says nothing.
                    signals.check()


def cold_and_warm(client: MeshClient, timeline_file: Path) -> list[str]:
    """Eight questions without reuse, then eight others over a text that one request has brought into the cache."""
    from wavepp.cli.demo import checks as demo_checks
    from wavepp.cli.demo.texts import OTHER_QUESTIONS, QUESTIONS, TEXT_CHARS, ask, long_text
    from wavepp.cli.mesh.trace import write_timeline

    text = long_text(TEXT_CHARS)
    cold = ask_all(
        client,
        QUESTIONS,
        [_request(ask(text, question), new_salt(), ANSWER_TOKENS) for question in QUESTIONS],
        f"cold: {len(QUESTIONS)} questions about one text, {CONCURRENCY} at a time, each with a salt of its own",
    )
    shared = new_salt()
    seeding = _prefill(client, [_request(ask(text, QUESTIONS[0]), shared, 1)])[0].response
    stdout().print(
        f"seeding: one request with the salt that the next round shares brings the text into the cache "
        f"({seeding.computed_tokens:,} tokens computed)",
        soft_wrap=True,
    )
    warm = ask_all(
        client,
        OTHER_QUESTIONS,
        [_request(ask(text, question), shared, ANSWER_TOKENS) for question in OTHER_QUESTIONS],
        f"warm: {len(OTHER_QUESTIONS)} other questions about the same text, {CONCURRENCY} at a time, one shared salt",
    )
    waves = write_timeline(client.timeline(), client.status(), timeline_file)
    stdout().print(f"timeline of {waves} waves: {timeline_file} (open it in https://ui.perfetto.dev)", soft_wrap=True)
    return [
        *demo_checks.check_counts("cold", cold),
        *demo_checks.check_cold(cold),
        *demo_checks.check_counts("warm", warm),
        *demo_checks.check_warm(warm),
    ]


def cached_and_uncached(client: MeshClient) -> list[str]:
    """The same prompts with and without reuse, in fp32 on a fixed chunk grid: the answers must be identical."""
    from wavepp.cli.demo import checks as demo_checks
    from wavepp.cli.demo.texts import OTHER_QUESTIONS, QUESTIONS, SHORT_TEXT_CHARS, ask, long_text

    text = long_text(SHORT_TEXT_CHARS)
    prompts = [ask(text, question) for question in OTHER_QUESTIONS[:SAME_PROMPTS]]
    shared = new_salt()

    def requests(salts: Sequence[str]) -> list[prefill_pb2.PrefillRequest]:
        return [
            _request(prompt, salt, ANSWER_TOKENS, top_logprobs=20) for prompt, salt in zip(prompts, salts, strict=True)
        ]

    _prefill(client, [_request(ask(text, QUESTIONS[0]), shared, 1)])
    warm = [answer.response for answer in _prefill(client, requests([shared] * SAME_PROMPTS))]
    cold = [answer.response for answer in _prefill(client, requests([new_salt() for _ in prompts]))]
    wrong = demo_checks.check_same(warm, cold, min(8, ANSWER_TOKENS))
    reused = ", ".join(f"{w.cached_tokens} of {w.prompt_tokens}" for w in warm)
    stdout().print(
        f"fp32, fixed chunk grid: {SAME_PROMPTS} answers of {ANSWER_TOKENS} tokens, with {reused} prompt tokens reused "
        f"and with none: {'they differ' if wrong else 'identical, token by token'}",
        soft_wrap=True,
    )
    return wrong


def ask_all(
    client: MeshClient, names: Sequence[str], requests: Sequence[prefill_pb2.PrefillRequest], title: str
) -> list[prefill_pb2.PrefillResponse]:
    """Send a round and print its table. Raises CallError when one fails."""
    from wavepp.cli.mesh.batch import PromptOutcome
    from wavepp.cli.mesh.prefill_view import answers_table

    console = stdout()
    began = time.monotonic()
    with console.status(title):
        answers = _prefill(client, requests)
    took_s = time.monotonic() - began
    named = [(name, PromptOutcome(answer=answer)) for name, answer in zip(names, answers, strict=True)]
    console.print(answers_table(named, title))
    responses = [answer.response for answer in answers]
    prompt_tokens = sum(response.prompt_tokens for response in responses)
    console.print(
        f"{prompt_tokens:,} prompt tokens in {took_s:.1f} s, the answers included: {prompt_tokens / took_s:,.0f} input "
        "tokens/s",
        soft_wrap=True,
    )
    return responses


def new_salt() -> str:
    """One that nobody has used."""
    return f"demo-{uuid.uuid4().hex}"


def _prefill(client: MeshClient, requests: Sequence[prefill_pb2.PrefillRequest]) -> list[Answer]:
    from wavepp.cli.mesh.batch import prefill_all

    answers = []
    for outcome in prefill_all(client, requests, concurrency=CONCURRENCY, deadline_s=DEADLINE_S):
        if outcome.answer is None:
            assert outcome.error is not None
            raise outcome.error
        answers.append(outcome.answer)
    return answers


def _request(text: str, salt: str, max_tokens: int, top_logprobs: int = 0) -> prefill_pb2.PrefillRequest:
    from wavepp.v1 import prefill_pb2, types_pb2

    return prefill_pb2.PrefillRequest(
        text=text,
        chat=True,
        cache_salt=salt,
        max_tokens=max_tokens,
        # Every answer has all its tokens, so that they can be compared.
        ignore_eos=top_logprobs > 0,
        sampling=types_pb2.Sampling(top_logprobs=top_logprobs),
    )

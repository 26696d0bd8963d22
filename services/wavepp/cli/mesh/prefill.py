"""`wavepp prefill`: prompts in, tokens out."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Annotated

import typer

from wavepp.cli.mesh.address import RUN_DIR, AddressOption, RunDirOption, find_address
from wavepp.cli.terminal import EXIT_FAILED, errors_as_lines, fail, stderr, stdout
from wavepp.core.limits import TOP_LOGPROBS_MAX


def prefill(
    text: Annotated[list[str] | None, typer.Option("--text", "-t", help="A prompt; as often as you like.")] = None,
    file: Annotated[list[Path] | None, typer.Option("--file", "-f", help="A text file as prompt; - is stdin.")] = None,
    tokens: Annotated[list[str] | None, typer.Option("--tokens", help="Token ids as prompt, like 1,2,3.")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, max=2**32 - 1, help="Output budget of each prompt.")] = 1,
    chat: Annotated[bool, typer.Option("--chat/--no-chat", help="Wrap text as a user's message.")] = False,
    salt: Annotated[str | None, typer.Option(help="Cache salt: only requests with the same salt share.")] = None,
    model: Annotated[str, typer.Option(help="Name of the model that must be served.")] = "",
    temperature: Annotated[float, typer.Option(min=0.0, help="0 is greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option(min=0.0, max=1.0, help="0 is off.")] = 0.0,
    top_k: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="0 is off.")] = 0,
    seed: Annotated[int, typer.Option(min=0, max=2**64 - 1, help="Of the sampling.")] = 0,
    top_logprobs: Annotated[
        int, typer.Option(min=0, max=TOP_LOGPROBS_MAX, help="Alternatives to report with the first token.")
    ] = 0,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on behind an end token.")] = False,
    priority: Annotated[int, typer.Option(min=-(2**31), max=2**31 - 1, help="Higher goes first.")] = 0,
    deadline: Annotated[float, typer.Option(min=0.001, help="Seconds that each request may take.")] = 600.0,
    concurrency: Annotated[int, typer.Option(min=1, max=512, help="Requests under way at a time.")] = 8,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Explain reuse and times of each prompt.")] = False,
    address: AddressOption = None,
    run_dir: RunDirOption = RUN_DIR,
) -> None:
    """Send prompts to the mesh and print what became of each: tokens, reuse, times, the answer."""
    from wavepp.cli.mesh.batch import prefill_all
    from wavepp.cli.mesh.client import MeshClient
    from wavepp.cli.mesh.prefill_view import answers_json, answers_table, explanation
    from wavepp.cli.mesh.prompts import collect_prompts, utf8
    from wavepp.v1 import prefill_pb2, types_pb2

    with errors_as_lines("prefill"):
        prompts = collect_prompts(text or [], file or [], tokens or [])
        salt = None if salt is None else utf8("--salt", salt)
        model = utf8("--model", model)
        where = find_address(address, run_dir)
        requests = []
        for prompt in prompts:
            request = prefill_pb2.PrefillRequest(
                model=model, priority=priority, max_tokens=max_tokens, ignore_eos=ignore_eos, cache_salt=salt
            )
            request.sampling.CopyFrom(
                types_pb2.Sampling(
                    temperature=temperature, top_p=top_p, top_k=top_k, seed=seed, top_logprobs=top_logprobs
                )
            )
            prompt.put_into(request, chat=chat)
            requests.append(request)
        with MeshClient(where) as client, _Progress(len(requests), shown=not as_json) as progress:
            outcomes = prefill_all(
                client,
                requests,
                concurrency=concurrency,
                deadline_s=deadline,
                on_token=progress.token,
                on_done=progress.done,
            )
    named = [(prompt.name, outcome) for prompt, outcome in zip(prompts, outcomes, strict=True)]
    console = stdout()
    if as_json:
        print(json.dumps(answers_json(named), indent=2, ensure_ascii=False))
    elif any(outcome.answer for outcome in outcomes):
        console.print(answers_table(named))
        if verbose:
            for name, outcome in named:
                if outcome.answer is not None:
                    console.print(f"{name}: {explanation(outcome.answer.response)}", soft_wrap=True)
    errors = [outcome.error for outcome in outcomes if outcome.error is not None]
    if errors:
        more = f" ({len(errors)} of {len(outcomes)} prompts failed)" if len(outcomes) > 1 else ""
        fail("prefill", f"{errors[0]}{more}", EXIT_FAILED)


class _Progress:
    """A bar of finished prompts with a count of tokens, on a terminal only."""

    def __init__(self, prompts: int, *, shown: bool) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        console = stderr()
        self._bar = Progress(
            TextColumn("prefill"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("prompts, {task.fields[tokens]} tokens"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not shown or not console.is_terminal,
        )
        self._task = self._bar.add_task("prefill", total=prompts, tokens=0)
        self._tokens = 0
        self._lock = threading.Lock()

    def __enter__(self) -> _Progress:
        self._bar.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._bar.stop()

    def token(self) -> None:
        """One more token came; from any thread."""
        with self._lock:
            self._tokens += 1
            self._bar.update(self._task, tokens=self._tokens)

    def done(self) -> None:
        """One more prompt is done."""
        self._bar.advance(self._task)

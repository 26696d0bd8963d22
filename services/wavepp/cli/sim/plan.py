"""`wavepp plan`: which depth, wave size and policy suit a workload, by simulation."""

from __future__ import annotations

from typing import Annotated

import typer

from wavepp.cli.sim.sim import DEFAULT_PROFILE, ProfileOption, numbers, progress_bar
from wavepp.cli.terminal import errors_as_lines, stdout
from wavepp.core.errors import InvalidInputError


def plan(
    profile: ProfileOption = DEFAULT_PROFILE,
    workload: Annotated[str | None, typer.Option(help="Name of a workload, like 'reuse 128K'.")] = None,
    prompt: Annotated[int | None, typer.Option(min=1, max=4_000_000, help="Tokens of a prompt, instead.")] = None,
    cached: Annotated[int, typer.Option(min=0, max=4_000_000, help="Of these, tokens seen before.")] = 0,
    clients: Annotated[int, typer.Option(min=1, max=1024, help="Requests under way at a time.")] = 16,
    devices: Annotated[int, typer.Option(min=0, max=64, help="Devices; 0 = as many as the profile has stages.")] = 0,
    stages: Annotated[str, typer.Option(help="Depths that the model fits, like 4,8; the profile's or deeper.")] = "",
    wave_tokens: Annotated[str, typer.Option(help="M to try, like 8192,16384; from a quarter of the profile's.")] = "",
) -> None:
    """Say which pipeline depth, M and policy to take, what to expect of them, and where the bubbles come from."""
    from wavepp.cli.sim.view import outlook_lines, outlooks_table
    from wavepp.profiles.profile import load_profile
    from wavepp.sim.advice import best, choices, look_into
    from wavepp.sim.experiment import Rules
    from wavepp.sim.workload import Workload, workload_by_name

    with errors_as_lines("plan"):
        found = load_profile(profile)
        if (workload is None) == (prompt is None):
            raise InvalidInputError("say either --workload NAME or --prompt TOKENS (with --cached TOKENS)")
        if workload is not None and cached:
            raise InvalidInputError("--cached goes with --prompt; a workload says itself what is cached")
        if prompt is not None and cached >= prompt:
            raise InvalidInputError(f"--cached {cached} must be below --prompt {prompt}: the last token is computed")
        asked = (
            workload_by_name(workload)
            if workload is not None
            else Workload(f"{prompt} tokens, {cached} cached", ((1.0, prompt or 1, cached, ""),))
        )
        count = devices or found.measured_stages
        # Whether the model fits fewer stages than the profile was made for, only its user knows.
        deepest = found.measured_stages if found.slowdown else 64
        deeper = [depth for depth in range(found.measured_stages, deepest + 1) if count % depth == 0]
        depths = numbers("--stages", stages, 64) if stages else deeper or [found.measured_stages]
        if found.slowdown and depths != [found.measured_stages]:
            raise InvalidInputError(
                f"profile {found.name!r} has slow stages of a pipeline of {found.measured_stages}; with other depths "
                f"nobody knows which are slow, so give --stages {found.measured_stages} or a profile without slowdown"
            )
        largest = found.wave_tokens_max
        block = found.block_tokens
        default = [max(block, largest // part // block * block) for part in (4, 2, 1)]
        sizes = numbers("--wave-tokens", wave_tokens, 1 << 20, "8192,16384") if wave_tokens else default
        if any(size % block for size in sizes):
            raise InvalidInputError(
                f"--wave-tokens is {wave_tokens!r}; every M must be a multiple of the block, {block} tokens"
            )
        options = choices(count, depths, sizes)
        console = stdout()
        left_out = [str(depth) for depth in depths if count % depth]
        if left_out:
            console.print(f"left out: {', '.join(left_out)} stages, which do not divide {count} devices")
        with progress_bar("simulating") as progress:
            outlooks = look_into(options, asked, clients, found, Rules(), progress)
        console.print(f"simulated: {asked.name}, {clients} clients, {count} devices, profile {found.name}")
        console.print(f"{found.derived}", soft_wrap=True)
        console.print(outlooks_table(outlooks))
        for line in outlook_lines(best(outlooks)):
            console.print(line, soft_wrap=True)

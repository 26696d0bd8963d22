"""Tables that commands print, read again."""

from __future__ import annotations

from wavepp.core.waves.policy_factory import POLICY_NAMES, PolicyName


def rows(said: str) -> list[dict[str, str]]:
    """Of the table in it, by heading."""
    (heading,) = (line for line in said.splitlines() if line.startswith("┃"))
    names = [cell.strip() for cell in heading.strip("┃").split("┃")]
    lines = [line.strip("│").split("│") for line in said.splitlines() if line.startswith("│")]
    return [dict(zip(names, map(str.strip, cells), strict=True)) for cells in lines]


def mean_and_spread(cell: str) -> tuple[float, float]:
    mean, spread = cell.split(" +-")
    return float(mean), float(spread)


def policy_name(name: str) -> PolicyName:
    return next(one for one in POLICY_NAMES if one == name)

"""Draw the tables of states into docs/protocol.md; with --check, say whether the drawings are current."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import Final

from wavepp.core.directory import attempts
from wavepp.core.router import epochs, requests
from wavepp.core.stage import grants

TARGET = Path(__file__).with_name("protocol.md")

Edge = tuple[Enum, Enum, Enum, str]
"""(state, event, following state, action; empty where the table has none)"""

TABLES: Final[dict[str, list[Edge]]] = {
    "request": [(state, event, to, "") for (state, event), to in requests.TRANSITIONS.items()],
    "attempt": [(state, event, to, "") for (state, event), to in attempts.TRANSITIONS.items()],
    "grant": [(state, event, to, action.value) for (state, event), (to, action) in grants.TRANSITIONS.items()],
    "epoch": [(phase, event, to, "") for (phase, event), to in epochs.TRANSITIONS.items()],
}


def either(words: list[str]) -> str:
    """ "a, b or c"."""
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def diagram(edges: list[Edge]) -> str:
    """A mermaid diagram. It begins at the first edge's state and ends where no edge leads to another state."""
    arrows: dict[tuple[Enum, Enum], dict[str, list[str]]] = {}
    for state, event, to, action in edges:
        arrows.setdefault((state, to), {}).setdefault(action, []).append(event.value)
    states = list(type(edges[0][0]))
    lines = [f'state "{state.value}" as {state.name}' for state in states]
    lines.append(f"[*] --> {edges[0][0].name}")
    for (state, to), by_action in arrows.items():
        # Neither a colon nor a semicolon may be in a label.
        label = ", ".join(either(events) + (action and f" ({action})") for action, events in by_action.items())
        lines.append(f"{state.name} --> {to.name}: {label}")
    lines += [f"{last.name} --> [*]" for last in states if all(to is last for state, to in arrows if state is last)]
    return "\n    ".join(["stateDiagram-v2", *lines])


def drawn(text: str) -> str:
    """The document with a diagram between the marks of every table."""
    for name, edges in TABLES.items():
        begin, end = f"<!-- {name}: drawn by docs/draw_states.py -->\n", "<!-- drawn -->"
        before, _, rest = text.partition(begin)
        _, found, after = rest.partition(end)
        if not found:
            sys.exit(f"docs/protocol.md has no place for the states of: {name}; mark it with {begin}{end}")
        text = f"{before}{begin}```mermaid\n{diagram(edges)}\n```\n{end}{after}"
    return text


def main() -> None:
    """Draw, or compare."""
    text = TARGET.read_text()
    if "--check" not in sys.argv[1:]:
        TARGET.write_text(drawn(text))
    elif text != drawn(text):
        sys.exit("docs/protocol.md is not current; run python docs/draw_states.py and commit")


if __name__ == "__main__":
    main()

"""The demo's long text and its questions. The text comes with Python: its own reference manual, in English."""

from __future__ import annotations

from typing import Final

TEXT_CHARS: Final = 13_000
"""About 3,000 tokens."""

SHORT_TEXT_CHARS: Final = 4_800
"""About 1,200 tokens, for the comparison in fp32."""

TOPICS: Final = (
    "assert",
    "break",
    "continue",
    "del",
    "if",
    "while",
    "for",
    "pass",
    "return",
    "nonlocal",
    "lambda",
    "yield",
    "with",
    "global",
    "raise",
    "in",
    "class",
    "try",
)

QUESTIONS: Final = (
    "In one sentence, what does the assert statement do?",
    "In one sentence, what does the break statement do?",
    "In one sentence, what does the continue statement do?",
    "In one sentence, what happens when a name is deleted with del?",
    "In one sentence, when is the else part of a while loop executed?",
    "In one sentence, what does the pass statement do?",
    "In one sentence, what does the return statement do?",
    "In one sentence, what is a lambda expression?",
)

OTHER_QUESTIONS: Final = (
    "Which statement does nothing when it is executed?",
    "Which statement ends the nearest enclosing loop?",
    "Which statement skips to the next cycle of a loop?",
    "How can a program raise an error when a condition is false?",
    "What does a for loop go over? Answer briefly.",
    "How is an anonymous function written in Python?",
    "What can follow the return keyword? Answer briefly.",
    "What is the nonlocal statement good for? Answer briefly.",
)


def long_text(chars: int) -> str:
    """The first `chars` characters or so of the reference manual's topics, cut between words."""
    from pydoc_data.topics import topics

    parts: list[str] = []
    length = 0
    for topic in (*TOPICS, *sorted(set(topics) - set(TOPICS))):
        body = " ".join(str(topics.get(topic, "")).split())
        parts.append(body)
        length += len(body) + 1
        if length >= chars:
            break
    return "\n".join(parts)[:chars].rsplit(" ", 1)[0]


def ask(text: str, question: str) -> str:
    """A prompt: the text first, so that prompts over one text share all of it but the question."""
    return f"This is a part of the Python reference manual:\n\n{text}\n\n{question}"

"""Text to tokens; and the text of tokens as they come, against that of all of them at once."""

from __future__ import annotations

import asyncio
import sys
import unicodedata
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from wavepp.core.errors import InvalidInputError
from wavepp.core.limits import TOKEN_BYTES
from wavepp.core.tokens import decode_tokens
from wavepp.router.token_bytes_bound import NFC_SHRINKS_MAX, token_bytes_max
from wavepp.router.tokenizer import HELD_TOKENS_MAX, UNREADABLE, StreamDecoder, TextCodec

UNKNOWN = 100_000
"""An id that no tokenizer here has."""
END = "|"
"""An ordinary token of all of them, and a part of no other."""
PARTY = [f"<0x{byte:02X}>" for byte in "🎉".encode()]


class CountingCodec(TextCodec):
    """Knows how many tokens it has decoded."""

    decoded = 0

    def decode(self, tokens: list[int]) -> str:
        self.decoded += len(tokens)
        return super().decode(tokens)


class Kind:
    """A tokenizer of one kind and its codec. Has a special token `<s>`."""

    def __init__(self, directory: Path, tokenizer: Tokenizer) -> None:
        tokenizer.add_special_tokens(["<s>"])
        directory.mkdir()
        tokenizer.save(str(directory / "tokenizer.json"))
        self.tokenizer = tokenizer
        self.codec = CountingCodec(directory)

    def ids(self, *tokens: str) -> list[int]:
        """The ids of tokens by their names."""
        found = [self.tokenizer.token_to_id(token) for token in tokens]
        assert None not in found, tokens
        return found

    def pieces(self, ids: list[int]) -> list[str]:
        """What a stream tells after each token."""
        decoder = StreamDecoder(self.codec)
        return [decoder.push(token) for token in ids]


def byte_level() -> Tokenizer:
    """As GPT-2 and its many followers have it: every byte is a token, so are some sequences, also torn ones."""
    names = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("Ġ", "a"), ("h", "e"), ("ð", "Ł"), ("ä", "½"), ("a", "ð")]
    vocabulary = {name: i for i, name in enumerate([*names, *(a + b for a, b in merges)])}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def byte_fallback() -> Tokenizer:
    """A vocabulary of words; what it lacks comes as bytes."""
    words = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "é", END, "▁a", "▁▁", "▁|"]
    merges = [("▁", "a"), ("▁", "▁"), ("▁", END)]
    return Tokenizer(models.BPE({w: i for i, w in enumerate(words)}, merges, unk_token="<unk>", byte_fallback=True))


def llama() -> Tokenizer:
    """Byte fallback, with the decoder that Llama has."""
    tokenizer = byte_fallback()
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


def metaspace() -> Tokenizer:
    """Byte fallback, with the decoder that T5 and others have."""
    tokenizer = byte_fallback()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    return tokenizer


def word_piece() -> Tokenizer:
    """As BERT has it: words are joined by spaces, their later parts are marked."""
    words = ["[UNK]", "play", "##ing", "##s", ",", ".", "do", "n't", END]
    tokenizer = Tokenizer(models.WordPiece({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


KINDS = (byte_level, llama, metaspace, word_piece)


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Kind]:
    """All kinds, by name."""
    folder = tmp_path_factory.mktemp("tokenizers")
    return {make.__name__: Kind(folder / make.__name__, make()) for make in KINDS}


@pytest.mark.parametrize("name", ["byte_level", "word_piece"])
@settings(deadline=None)
@given(data=st.data())
def test_pieces_of_any_tokens_make_the_text_of_all(name: str, kinds: dict[str, Kind], data: st.DataObject) -> None:
    kind = kinds[name]
    size = kind.tokenizer.get_vocab_size()
    ids = data.draw(st.lists(st.integers(0, size + 1), max_size=80))
    # Within a character that goes on after so many tokens without text, the stream has given up waiting.
    assume(all(len(list(run)) < HELD_TOKENS_MAX - 4 for same, run in groupby(ids) if not kind.codec.decode([same])))
    ids += kind.ids(END)
    assert "".join(kind.pieces(ids)) == kind.codec.decode(ids)


@pytest.mark.parametrize("name", ["llama", "metaspace"])
@settings(deadline=None)
@given(data=st.data())
def test_pieces_with_byte_fallback_make_the_text_of_all_but_broken_runs(
    name: str, kinds: dict[str, Kind], data: st.DataObject
) -> None:
    kind = kinds[name]
    readable = st.text(st.characters(exclude_characters=END + UNREADABLE, codec="utf-8"), max_size=12)
    part = st.one_of(
        readable.map(lambda text: kind.tokenizer.encode(text, add_special_tokens=False).ids),
        st.binary(max_size=24).map(lambda bad: kind.ids(*(f"<0x{byte:02X}>" for byte in bad if byte != ord(END)))),
        st.just(kind.ids("<s>")),
        st.just([UNKNOWN]),
    )
    ids = [token for ids in data.draw(st.lists(part, max_size=12)) for token in (*ids, *kind.ids(END))]
    given, whole = "".join(kind.pieces(ids)).split(END), kind.codec.decode(ids).split(END)
    assert len(given) == len(whole)
    for heard, right in zip(given, whole, strict=True):
        assert heard == right or (UNREADABLE in heard and UNREADABLE in right)


def test_a_character_is_told_when_it_is_whole(kinds: dict[str, Kind]) -> None:
    assert kinds["llama"].pieces(kinds["llama"].ids("a", *PARTY, "▁a")) == ["a", "", "", "", "🎉", " a"]
    byte_level = kinds["byte_level"]
    assert byte_level.pieces(byte_level.ids("að", "Ł", "İ", "ī", "Ġa")) == ["", "", "", "a🎉", " a"]


def test_bytes_that_break_a_run_leave_what_was_told_and_what_follows(kinds: dict[str, Kind]) -> None:
    ids = kinds["llama"].ids("<0x41>", "<0xFF>", "▁a", "▁", *PARTY)
    assert kinds["llama"].pieces(ids) == ["A", "", f"{UNREADABLE} a", " ", "", "", "", "🎉"]


def test_unreadable_bytes_are_told_though_nothing_readable_follows(kinds: dict[str, Kind]) -> None:
    for name, token in (("byte_level", "ð"), ("llama", "<0xF0>"), ("metaspace", "<0xF0>")):
        given = "".join(kinds[name].pieces(kinds[name].ids(token) * 100))
        assert set(given) == {UNREADABLE}
        assert len(given) > 100 - HELD_TOKENS_MAX


@pytest.mark.parametrize(
    ("name", "token"), [("byte_level", "ð"), ("byte_level", "<s>"), ("llama", "<0xF0>"), ("metaspace", "<0xF0>")]
)
def test_tokens_without_text_do_not_make_later_ones_dearer(name: str, token: str, kinds: dict[str, Kind]) -> None:
    kind = kinds[name]
    decoder, work = StreamDecoder(kind.codec), []
    for _ in range(4):
        kind.codec.decoded = 0
        for _ in range(1000):
            decoder.push(*kind.ids(token))
        work.append(kind.codec.decoded)
    assert work[-1] <= work[0] * 1.1
    assert work[-1] <= 1000 * 4 * HELD_TOKENS_MAX


# ---- text to tokens ----


def nfc() -> Tokenizer:
    """As Qwen has it."""
    tokenizer = byte_level()
    tokenizer.normalizer = normalizers.NFC()
    return tokenizer


@pytest.mark.parametrize("make", [byte_level, nfc])
@settings(deadline=None)
@given(text=st.text())
def test_a_token_is_never_more_bytes_than_the_bound_says(make: Callable[[], Tokenizer], text: str) -> None:
    tokenizer = make()
    tokenizer.add_special_tokens(["<s>"])
    most = token_bytes_max(tokenizer)
    assert most is not None
    assert len(text.encode()) <= most * len(tokenizer.encode(text).ids)


def test_the_bound_is_that_of_the_longest_token() -> None:
    tokenizer = byte_level()
    assert token_bytes_max(tokenizer) == 2
    tokenizer.add_special_tokens(["<an_end>"])
    assert token_bytes_max(tokenizer) == 8


def test_no_text_shrinks_more_than_the_bound_says_when_it_is_normalized() -> None:
    """Of each character, the longest of all that are equal to it: by its parts, each of them as long as it can be."""
    longest: dict[str, int] = {}
    for code in range(sys.maxunicode + 1):
        parts = unicodedata.normalize("NFD", chr(code))
        if len(parts) == 1 and not 0xD800 <= code < 0xE000:
            longest[parts] = max(longest.get(parts, 0), len(chr(code).encode()))
    for code in range(sys.maxunicode + 1):
        whole = chr(code)
        if not 0xD800 <= code < 0xE000 and unicodedata.is_normalized("NFC", whole):
            parts = unicodedata.normalize("NFD", whole)
            assert sum(longest[part] for part in parts) <= NFC_SHRINKS_MAX * len(whole.encode()), hex(code)


def without_a_bound() -> Iterator[Tokenizer]:
    """Tokenizers that make few tokens of texts of any length."""
    yield from (make() for make in (byte_fallback, llama, metaspace, word_piece))
    swallows = byte_level()
    swallows.add_tokens([AddedToken("<s>", rstrip=True)])
    yield swallows
    removes = byte_level()
    removes.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(" ", "removed"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    yield removes
    strips = byte_level()
    strips.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Strip()])
    yield strips
    knows_little = Tokenizer(models.BPE({"a": 0}, []))
    knows_little.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    yield knows_little


def test_where_a_token_may_be_of_any_length_nothing_is_refused_by_its_bytes() -> None:
    assert [token_bytes_max(tokenizer) for tokenizer in without_a_bound()] == [None] * 8


async def test_a_text_that_must_be_too_long_is_refused_unencoded(kinds: dict[str, Kind]) -> None:
    codec = kinds["byte_level"].codec
    assert len(await codec.encode("a" * 30, chat=False, tokens_max=10)) == 30 * TOKEN_BYTES, "it could have fitted"
    with pytest.raises(InvalidInputError, match="more than 10 tokens, the limit: a token of this model is at most 3"):
        await codec.encode("a" * 31, chat=False, tokens_max=10)


@pytest.mark.parametrize("size", [10, 10_000], ids=["at once", "in a thread"])
async def test_text_is_encoded_whole_and_alone_whatever_the_file_says(tmp_path: Path, size: int) -> None:
    """Some files would have prompts cut, or filled up."""
    tokenizer = byte_level()
    plain = tokenizer.encode("he a" * size).ids
    tokenizer.enable_truncation(5)
    tokenizer.enable_padding(length=100_000)
    codec = Kind(tmp_path / "cuts", tokenizer).codec
    assert decode_tokens(await codec.encode("he a" * size, chat=False, tokens_max=1_000_000)) == plain


async def test_a_long_text_does_not_stop_the_event_loop(kinds: dict[str, Kind]) -> None:
    """With the interpreter kept, the longest pause would be as long as the encoding."""
    loop = asyncio.get_running_loop()
    began = last = loop.time()
    longest_s = 0.0
    encoding = asyncio.ensure_future(
        kinds["byte_level"].codec.encode("a he " * 400_000, chat=False, tokens_max=1 << 22)
    )
    while not encoding.done():
        await asyncio.wait({encoding}, timeout=0.001)
        longest_s, last = max(longest_s, loop.time() - last), loop.time()
    assert longest_s < (last - began) / 2

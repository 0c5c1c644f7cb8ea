"""Tokens to text: whole characters, and stop strings that nobody sees a part of."""

from __future__ import annotations

import itertools
import random

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from spec_local.session.text_stream import TextStream

ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
CHARACTERS = ("👩🏽‍🚀", "नमस्ते", "안녕하세요", "naïve café", "漢字かな", "a\u0301e\u0308", "👨‍👩‍👧‍👦!")


def _stream(pieces: list[bytes], stops: tuple[str, ...] = ()) -> tuple[list[str], TextStream, int]:
    """Feed pieces as tokens; returns what came out token by token, the stream, and the tokens it took."""
    stream = TextStream(lambda token: pieces[token], stops)
    shown, taken = [], 0
    for token in range(len(pieces)):
        taken += 1
        ended = stream.push(token)
        shown.append(stream.take())
        assert ended == stream.stopped
        if ended:
            break
    stream.finish()
    shown.append(stream.take())
    assert "".join(shown) == stream.text
    return shown, stream, taken


def _cut(data: bytes, at: list[int]) -> list[bytes]:
    edges = [0, *sorted(at), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


@pytest.mark.parametrize("text", CHARACTERS)
def test_characters_cut_anywhere_come_out_whole(text: str) -> None:
    data = text.encode()
    for pieces in ([bytes([byte]) for byte in data], *(_cut(data, [i]) for i in range(len(data) + 1))):
        shown, stream, _ = _stream(pieces)
        assert stream.text == text
        assert "\ufffd" not in "".join(shown)
        assert all(chunk.encode() for chunk in shown if chunk)


@pytest.mark.parametrize("text", CHARACTERS)
def test_a_character_is_shown_as_soon_as_it_is_whole(text: str) -> None:
    data = text.encode()
    stream = TextStream(lambda token: data[token : token + 1])
    for token in range(len(data)):
        stream.push(token)
        assert stream.text == data[: token + 1].decode(errors="ignore")


@pytest.mark.parametrize("text", CHARACTERS)
def test_a_text_cut_inside_a_character_ends_before_it(text: str) -> None:
    data = text.encode()
    for count in range(len(data) + 1):
        _, stream, _ = _stream([bytes([byte]) for byte in data[:count]])
        assert stream.text == data[:count].decode(errors="ignore")
        assert "\ufffd" not in stream.text
        stream.text.encode()


def test_bytes_that_are_no_character_are_replaced_once_and_the_rest_is_kept() -> None:
    _, stream, _ = _stream([b"a\xff", b"b", b"\xe0\xa5", b"c"])
    assert stream.text == "a\ufffdb\ufffdc"


@pytest.mark.parametrize(
    "split", [["DE", "FG", "HI", "J"], ["DEF", "GH", "I", "J"], list("DEFGHIJ"), ["DEFGHIJ"], ["DEFGHIJKL"]]
)
def test_no_part_of_a_stop_string_is_ever_shown(split: list[str]) -> None:
    pieces = [piece.encode() for piece in [*split, *ALPHABET[10:]]]
    shown, stream, taken = _stream(pieces, ("DEFGHIJ",))
    assert stream.stopped
    assert shown == [""] * (taken + 1)
    assert taken == len(split)


def test_what_only_looked_like_a_stop_string_is_shown_in_the_end() -> None:
    shown, stream, _ = _stream([b"AB", b"CD", b"EX", b"CD"], ("CDEF",))
    assert shown == ["AB", "", "CDEX", "", "CD"]
    assert stream.text == "ABCDEXCD"
    assert not stream.stopped


def test_of_overlapping_stop_strings_the_one_that_starts_first_wins() -> None:
    for split in (["FG", "HI"], ["F", "G", "H", "I"], ["FGHI"], ["FGH", "I"]):
        _, stream, _ = _stream([b"E", *(piece.encode() for piece in split)], ("GH", "FGHI"))
        assert stream.text == "E"
    _, stream, _ = _stream([b"E", b"FG", b"H", b"X", b"Y"], ("GH", "FGHI"))
    assert stream.text == "EF"
    _, stream, taken = _stream([b"EFGH"], ("GH", "FGHI"))
    assert (stream.text, taken) == ("EF", 1)  # the end decides what the tokens left open
    for stops in (("AB", "ABC"), ("ABC", "AB")):
        _, stream, taken = _stream([b"xA", b"B", b"C"], stops)
        assert (stream.text, taken) == ("x", 2)


def test_stop_strings_of_characters_that_span_tokens() -> None:
    stop = "🚀"
    pieces = [b"go ", *(bytes([byte]) for byte in stop.encode()), b"!"]
    shown, stream, taken = _stream(pieces, (stop,))
    assert stream.text == "go "
    assert taken == 5
    assert shown == ["go ", "", "", "", "", ""]


def test_a_stop_string_at_the_very_start_and_repeated_letters() -> None:
    assert _stream([b"\n", b"\n"], ("\n\n",))[1].text == ""
    assert _stream([b"a"] * 9, ("aab",))[1].text == "a" * 9
    _, stream, taken = _stream([b"a", b"a", b"a", b"b", b"c"], ("aab",))
    assert (stream.text, taken) == ("a", 4)


def test_empty_stop_strings_and_silent_tokens() -> None:
    assert _stream([b"", b"a", b"", b"b"], ("",))[1].text == "ab"
    shown, _, _ = _stream([b"a", b"", b"b"], ("zz",))
    assert shown[1] == ""


def test_a_stopped_stream_takes_no_more() -> None:
    stream = TextStream(lambda _token: b"x", ("x",))
    assert stream.push(0)
    with pytest.raises(AssertionError):
        stream.push(0)
    stream.finish()
    assert stream.text == ""


def _expected(text: str, stops: tuple[str, ...]) -> str:
    """The definition: cut at the stop string that starts first."""
    found = [at for stop in stops if stop and (at := text.find(stop)) >= 0]
    return text[: min(found)] if found else text


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    text=st.text(alphabet="abcé🚀", max_size=24),
    stops=st.lists(st.text(alphabet="abcé🚀", min_size=1, max_size=4), max_size=3),
    seed=st.integers(0, 2**16),
)
def test_any_text_any_stops_any_cut(text: str, stops: list[str], seed: int) -> None:
    """However the text is cut into tokens, what is shown is cut at the stop string that starts first in it."""
    data = text.encode()
    chance = random.Random(seed)
    pieces = _cut(data, [chance.randint(0, len(data)) for _ in range(chance.randint(0, 8))])
    shown, stream, taken = _stream(pieces, tuple(stops))
    assert stream.text == _expected(text, tuple(stops))
    if stream.stopped and taken < len(pieces):
        before = b"".join(pieces[: taken - 1]).decode(errors="ignore")
        assert _expected(before, tuple(stops)) == before or len(stops) > 1  # not a token later than needed
    assert "".join(shown) == stream.text

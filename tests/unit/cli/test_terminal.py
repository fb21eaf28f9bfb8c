"""Guest output can never drive the user's terminal (catalogue T044)."""

from __future__ import annotations

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellbox.cli.terminal import Filter, GuestStream, escaped

ATTACKS = {
    "clipboard": "\x1b]52;c;ZXZpbA==\x07",
    "clipboard ended by ST": "\x1b]52;c;ZXZpbA==\x1b\\",
    "title": "\x1b]0;pwned\x07",
    "link": "\x1b]8;;http://example.test\x1b\\",
    "clear screen": "\x1b[2J",
    "cursor": "\x1b[1;1H",
    "report device": "\x1b[c\x1b[6n",
    "alternate screen": "\x1b[?1049h",
    "window operation": "\x1b[21t",
    "device control": "\x1bP$q q\x1b\\",
    "application command": "\x1b_Gf=100;AAAA\x1b\\",
    "privacy message": "\x1b^secret\x1b\\",
    "eight-bit CSI": "\x9b2J",
    "eight-bit OSC": "\x9d52;c;ZXZpbA==\x9c",
    "reset terminal": "\x1bc",
    "charset": "\x1b(0",
    "bell and backspace": "\x07\x08\x08",
    "delete": "\x7f",
    "conceal": "\x1b[8m",
    "conceal among others": "\x1b[1;08;31m",
    "keyboard mode": "\x1b[>1u",
}


def clean(*pieces: str) -> str:
    stream = Filter()
    return "".join(stream.feed(piece) for piece in pieces) + stream.finish()


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS.keys())
def test_control_sequences_vanish_and_the_text_around_them_stays(attack: str) -> None:
    assert clean(f"before{attack}after") == "beforeafter"


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS.keys())
def test_a_sequence_may_be_cut_anywhere(attack: str) -> None:
    assert clean("before", *attack, "after") == "beforeafter"


@pytest.mark.parametrize("colour", ["\x1b[31m", "\x1b[1;4;38;5;8m", "\x1b[38;2;8;8;8m", "\x1b[48:5:8m"])
def test_colours_pass_and_are_reset_at_the_end(colour: str) -> None:
    assert clean(f"{colour}text") == f"{colour}text\x1b[0m"
    assert clean(f"{colour}text\x1b[0m") == f"{colour}text\x1b[0m"


def test_text_in_every_script_passes() -> None:
    text = "tab\there, line\r\nnext: é ☃ 你好 مرحبا नमस्ते 🙂\n"
    assert clean(text) == text


def test_bidirectional_overrides_are_shown() -> None:
    assert clean("a\u202eb\u2066c") == r"a\u202eb\u2066c"


def test_an_unended_sequence_does_not_swallow_the_rest() -> None:
    assert clean("\x1b]0;title without an end\nnext line\n") == "\nnext line\n"
    assert clean("\x1bP" + "x" * 10_000).startswith("x")


@given(st.lists(st.text(st.sampled_from("\x1b[]P0;m8\x07\\\x9b\x9d\x9c\n aJ\u202e\x18"), max_size=8)))
def test_whatever_comes_only_colours_escape(pieces: list[str]) -> None:
    left = re.sub(r"\x1b\[[0-9;:]*m", "", clean(*pieces))
    assert not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e]", left)


@given(st.lists(st.text(st.sampled_from("\x1b[]P0;m8\x07\\\x9b\x9d\x9c\n aJ"), max_size=8)))
def test_pieces_and_whole_are_filtered_alike(pieces: list[str]) -> None:
    assert clean(*pieces) == clean("".join(pieces))


def test_names_are_shown_on_one_line() -> None:
    assert escaped("a\nb\x1b[31mc\u202ed\u2028e\x9b") == r"a\nb\x1b[31mc\u202ed\u2028e\x9b"
    assert escaped("naïve 你好") == "naïve 你好"


class Screen(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


def test_a_terminal_is_protected_unless_asked_not_to() -> None:
    for raw, expected in ((False, b"ok"), (True, b"\x1b[2Jok")):
        below = io.BytesIO()
        screen = Screen(below, encoding="utf-8")
        GuestStream(screen, raw=raw).write("\x1b[2Jok")
        assert below.getvalue() == expected


def test_a_pipe_gets_the_exact_bytes() -> None:
    below = io.BytesIO()
    pipe = io.TextIOWrapper(below, encoding="utf-8")
    guest = GuestStream(pipe)
    guest.write("\x1b]52;c;x\x07é\n")
    guest.write_bytes(b"\x00\xff\r\n")
    assert below.getvalue() == b"\x1b]52;c;x\x07\xc3\xa9\n\x00\xff\r\n"

"""What a terminal shows: words that are wrapped while they come, and maps that fit it."""

import io

import numpy as np
import pytest

from configs.text import columns
from eval.chat import terminal as chat_terminal
from eval.chat.terminal import ASCII, BLOCKS, Wrapped, attention_map, prints_blocks

ENGLISH = "When the moon came up, both were ready, each in a green box with purple violets on it.\n\n  And so on."
CHINESE = "从前有一只名叫提科的小狐狸，住在大森林里。它每天都去河边看鱼，也看见了自己的影子。Tiko看了很久。"
LONG = f"A word of {'m' * 100} letters"


class Screen(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def narrow(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("LINES", "24")


def written(text: str, piece: int) -> str:
    screen = Screen()
    out = Wrapped(screen)
    for at in range(0, len(text), piece):
        out.write(text[at : at + piece])
    out.end()
    return screen.getvalue()


@pytest.mark.parametrize("text", [ENGLISH, CHINESE, LONG, ENGLISH + CHINESE], ids=["en", "zh", "long", "both"])
def test_text_is_wrapped_the_same_in_whatever_pieces_it_comes(narrow, text):
    whole = written(text, len(text))
    assert all(written(text, piece) == whole for piece in (1, 2, 7))
    assert max(map(columns, whole.splitlines())) in range(34, 40)  # the last column stays free
    assert whole.endswith("\n")
    assert "".join(whole.split()) == "".join(text.split())  # nothing is lost


def test_words_stay_whole_and_paragraphs_stay_apart(narrow):
    assert written(ENGLISH, 3).split() == ENGLISH.split()
    assert written(ENGLISH, 3).endswith("on it.\n\n  And so on.\n")
    assert not any(line.startswith(" ") for line in written(ENGLISH, 3).splitlines()[:3])


def test_chinese_fills_its_lines(narrow):
    lines = written(CHINESE, 1).splitlines()
    assert [columns(line) >= 34 for line in lines[:-1]] == [True] * (len(lines) - 1)


def test_a_word_is_shown_as_soon_as_it_is_complete(narrow):
    screen = Screen()
    out = Wrapped(screen)
    out.write("Once th")
    assert screen.getvalue() == "Once"
    out.write("ere was 小")
    assert screen.getvalue() == "Once there was 小"


def test_nothing_in_a_text_drives_the_terminal(narrow):
    shown = written("red \x1b[31m, bell \x07, back \r\x08, \u202edrow", 4)
    assert not any(character in shown for character in "\x1b\x07\r\x08\u202e")
    assert "⟨U+001B⟩[31m" in shown


def test_what_is_piped_on_is_not_wrapped(narrow):
    stream = io.StringIO()
    out = Wrapped(stream)
    out.line(ENGLISH)
    assert stream.getvalue() == ENGLISH + "\n"


def test_a_window_that_grows_is_used_at_once(narrow, monkeypatch):
    screen = Screen()
    out = Wrapped(screen)
    out.write("word " * 20)
    monkeypatch.setenv("COLUMNS", "100")
    out.write("word " * 40)
    out.end()
    widths = list(map(len, screen.getvalue().splitlines()))
    assert widths[0] < 40 < max(widths) < 100


def map_of(tokens: int, queries: int, width: int, **given) -> list[str]:
    """A head of which every query looks at the key before it with 0.75, and at the first one with 0.25."""
    weights = np.zeros((queries, tokens), dtype=np.float32)
    for row, key in enumerate(range(tokens - queries, tokens)):
        weights[row, 0] += 0.25
        weights[row, max(0, key - 1)] += 0.75
    labels = [f"␣token{i}" if i % 3 else "⏎狐" for i in range(tokens)]
    given = {"first": tokens - queries, "most_rows": 99, **given}
    return attention_map(weights, labels, width=width, **given)


@pytest.mark.parametrize("blocks", [True, False])
@pytest.mark.parametrize(("width", "tokens"), [(39, 9), (39, 300), (99, 9), (99, 300), (20, 3000)])
def test_a_map_fits_and_draws_every_weight(width, tokens, blocks):
    lines = map_of(tokens, min(tokens, 8), width, blocks=blocks)
    edge, levels = ("│", BLOCKS) if blocks else ("|", ASCII)
    assert len(lines) == min(tokens, 8)
    assert {columns(line) for line in lines} == {columns(lines[0])}
    assert columns(lines[0]) <= width
    if not blocks:
        assert all(line.isascii() for line in lines)
    for line in lines[-3:]:
        cells = line.split(edge)[1]
        assert (cells[0], cells.rstrip()[-2:].count(levels[6])) == (levels[2], 1)  # of 8: .25 and .75
        assert set(cells[1:].replace(levels[6], "").strip()) <= {levels[0]}
        assert line.endswith(" .75")


def test_a_row_ends_in_the_token_that_has_most():
    lines = map_of(9, 9, 99)
    assert [line.split("│")[0].strip() for line in lines[:3]] == ["⏎狐", "␣token1", "␣token2"]
    assert lines[2].split("│")[2].split() == ["␣token1", ".75"]
    assert lines[0].split("│")[2].split() == ["⏎狐", "1.0"]


def test_rows_that_have_no_room_are_left_out_with_the_keys_that_only_they_see():
    lines = map_of(300, 200, 99, most_rows=5)
    assert len(lines) == 5
    assert lines[-1].split("│")[1].rstrip() == lines[-1].split("│")[1]  # the last row drawn sees the last column


def test_a_terminal_without_blocks_is_known(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    for encoding, able in (("utf-8", True), ("ascii", False), ("latin-1", False), ("cp437", False)):
        assert prints_blocks(io.TextIOWrapper(io.BytesIO(), encoding=encoding)) is able
    monkeypatch.setenv("TERM", "dumb")
    assert not prints_blocks(io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))
    assert chat_terminal.terminal_width() >= chat_terminal.NARROWEST

"""Foreign text on a terminal and in Markdown: shown as it is, whatever it is."""

import io

from hypothesis import given
from hypothesis import strategies as st

from configs.command import Plain
from configs.text import INVISIBLE, code, columns, escape, fenced, markdown, plain, table
from tests.docs.checks import MARKDOWN
from train.run.config_checks import problem_of_name

MARKS = st.text(st.sampled_from("ab 1_*~`|[](){}<>!&;#:\\\"'/=-+.\n\t\x1b\u202e\u200b猫é"), max_size=20)
TEXTS = MARKS | st.text(max_size=20)


def shown(page: str) -> tuple[set[str], str]:
    """The kinds of tokens within the lines of a page, and the text of them."""
    inline = [part for token in MARKDOWN.parse(page) for part in token.children or []]
    return {part.type for part in inline}, "".join(part.content for part in inline)


@given(TEXTS)
def test_markdown_shows_the_text_and_nothing_in_it_works(text):
    kinds, content = shown(f"a {markdown(text)} z")
    assert kinds <= {"text", "text_special"}
    assert content.split() == f"a {escape(text)} z".split()


@given(TEXTS)
def test_whatever_is_in_a_cell_the_table_keeps_its_shape(text):
    page = table(["name", text], [[text, 1]])
    rows = [token for token in MARKDOWN.parse(page) if token.type in ("tr_open", "th_open", "td_open")]
    assert [token.type for token in rows] == ["tr_open", "th_open", "th_open", "tr_open", "td_open", "td_open"]


@given(TEXTS)
def test_code_and_blocks_hold_any_text(text):
    assert shown(f"a {code(text)} z")[0] <= {"text", "code_inline"}
    (block,) = MARKDOWN.parse(fenced(text))
    assert block.type == "fence"
    assert block.content.split() == plain(text).split()


@given(st.text(max_size=30))
def test_a_stream_writes_nothing_that_a_terminal_obeys(text):
    import unicodedata

    written = io.StringIO()
    Plain(written).write(text)
    left = [c for c in written.getvalue() if unicodedata.category(c) in INVISIBLE and c not in "\n\t\u200c\u200d"]
    assert left == []


def test_names_that_a_run_may_have():
    may = ["demo", "my run", "demo-2.5e-3-seed1", "Füße", "हिन्दी", "猫_2", "x=1+2", "_x"]
    may_not = [".x", "-x", "a.", "a ", "a/b", "a|b", "<b>", "`", "a\n", "\x1b", "\u202e", "\udcff", ""]
    assert [name for name in may + may_not if not problem_of_name(name)] == may


def test_names_stand_left_and_figures_right_whatever_is_in_a_cell():
    page = table(["name", "x"], [["a|b", "1,000"], ["two\nlines", 2], ["中文", 3], ["e\u0301t", 4]]).splitlines()
    assert page[:3] == ["| name      |     x |", "| --------- | ----: |", "| a\\|b      | 1,000 |"]
    # what a terminal shows, not characters
    assert {columns(line) for line in page} == {columns(page[0])}

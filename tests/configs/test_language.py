"""The terminal's sentences in Chinese: each English one is in the code, and a run's lines are translated."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from configs import language
from configs.language import sentences, translated

TABLE = Path(language.__file__).with_name("sentences.zh.txt").read_text(encoding="utf-8").strip().split("\n\n")
OF_A_RUN = """\
small: 401,856 parameters, 2 layers x 64, 4 query heads / 4 key-value heads (MHA)
device cpu (auto); precision bf16 (auto: this CPU computes in bf16); compile off (auto: 150 steps are too few for it); \
attention blocked (auto: the fastest that can serve here)
150 steps of 2,048 tokens (16 rows of 128, 16 at a time), 0.21 epochs
train: 12,000 documents, 4.90 MB, 1,496,485 tokens (3.30 bytes per token)
step 0: loss 7.6367, and ln(vocabulary 2,048) = 7.6246
step      0   val loss 7.6259   bits per byte 4.0878
step      0   writes “neppo Sorod messageibb deep too slowly …”
step     50   layer 0, head 2: previous token 0.07 → 0.26 (chance 0.05): attention to the token just before
step     90   loss 5.1   50,000 tokens/s   about 0.7 minutes to go
validation loss 6.1265 nats per token   perplexity 457.85   bits per byte 3.2841   on 49,414 held-out tokens
bits per byte, 20 whole held-out stories:       1.9386   floor 0.2731   gap +1.6655
0.2 minutes (0.1 of them evaluating and saving), 307,200 tokens, 49,762 tokens/s (median), finished at step 150
samples:    runs/small/samples.jsonl
checkpoint: runs/small/checkpoints/step_00000150
Around step 800 (1,638,400 tokens, 40 seconds), layer 1, head 2 learned to look at what followed the same token \
before, which is how a model copies (induction 0.61, chance 0.03). The loss on the second copy of random words rises \
by 3.58 without the strongest induction heads (L1 H2, L1 H0) and by 2.10 without the previous-token heads below them \
(L0 H1, L0 H3), in nats a token; without as many random heads by 0.10 at most.
You said 3, it is 9 bytes.
You said 5, it is 4 of 11.
… preparing: 5,093 documents, up to storyworld, train 4792, for 8 s now
… drawing, for 40 s now"""


@pytest.fixture(autouse=True)
def in_chinese(monkeypatch):
    monkeypatch.setenv("HEADLIGHT_LANG", "zh")


def templates() -> str:
    """Every text in the code, with {} for what is put into it; 's where a plural may stand."""
    texts = []
    for source in sources():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.JoinedStr):
                texts.append("".join(map(piece, node.values)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
    return "\n".join(texts)


def sources() -> Iterator[str]:
    """Yield every file of Python and every code cell of a notebook, without its magics."""
    root = Path(language.__file__).parents[1]
    for room in ("configs", "model", "storyworld", "data", "train", "eval", "serve", "notebooks"):
        for file in root.joinpath(room).rglob("*.py"):
            yield file.read_text(encoding="utf-8")
    for file in root.joinpath("notebooks").glob("*.ipynb"):
        for cell in json.loads(file.read_text(encoding="utf-8"))["cells"]:
            if cell["cell_type"] == "code":
                yield re.sub(r"(?m)^[%!].*$", "", "".join(cell["source"]))


def piece(part: ast.expr) -> str:
    if isinstance(part, ast.Constant):
        return str(part.value)
    return "s" if "'s'" in ast.unparse(part) else "{}"  # rows, threads


def test_every_english_sentence_is_in_the_code():
    """Change a sentence in the code without its line in the table, and this fails."""
    code = templates().lower()
    fragments = {part for block in TABLE for part in re.split(r"\{\w+\}|[:;()“”,]|\. ", block.split("\n")[0])}
    stale = sorted(part for part in fragments if len(part.strip()) > 3 and part.strip().lower() not in code)
    assert not stale, f"configs/sentences.zh.txt: not in the code, so change it there as well: {stale}"


def test_both_lines_of_a_sentence_have_the_same_parts():
    for block in TABLE:
        english, chinese = block.split("\n")
        wanted, shown = (set(re.findall(r"\{(\w+)", line)) for line in (english, chinese))
        assert shown <= wanted, block
        assert re.search(r"[\u4e00-\u9fff]|\{figures\}", chinese), block
    assert len(sentences()) == len(TABLE) == len({pattern.pattern for pattern, _ in sentences()})


def test_the_lines_of_a_run_come_out_in_chinese_and_keep_their_figures():
    for line in OF_A_RUN.split("\n"):
        shown = translated(line)
        assert re.search(r"[\u4e00-\u9fff]", shown), line
        assert not re.search(r"\b(step|the|of|minutes|held-out)\b", re.sub("“.*”", "", shown)), shown
        figures = sorted(re.findall(r"\d[\d.,]*\d|\d", re.sub(r"\(auto: .*?\)", "", line)))
        assert sorted(re.findall(r"\d[\d.,]*\d|\d", shown)) == figures
    assert translated("step      7   val loss 1.5   bits per byte 2") == "第      7 步   验证损失 1.5   比特/字节 2"
    assert translated("what nobody translated") == "what nobody translated"
    of_a_run = OF_A_RUN.split("\n")
    assert translated(OF_A_RUN) == "\n".join(map(translated, of_a_run))  # line by line


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({"HEADLIGHT_LANG": "en", "LANG": "zh_CN.UTF-8"}, "en"),
        ({"HEADLIGHT_LANG": "", "LANG": "zh_CN.UTF-8"}, "zh"),
        ({"HEADLIGHT_LANG": "", "LC_ALL": "C.UTF-8", "LANG": "zh_CN.UTF-8"}, "en"),
        ({"HEADLIGHT_LANG": "", "LANG": "de_DE.UTF-8"}, "en"),
    ],
)
def test_headlight_lang_goes_before_the_locale(monkeypatch, variables, wanted):
    for name in ("LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert language.language() == wanted

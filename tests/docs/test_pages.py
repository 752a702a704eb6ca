"""Every name in the guides exists: links, files, modules, options, keys, targets of make, YAML,
imports.

Chinese pages have the numbers and the code of the English ones.
"""

import re
from pathlib import Path

import pytest

from tests.docs.checks import ROOT, Page, code, differences, mistakes, read

pytestmark = pytest.mark.slow

FOLDERS = ("*.md", "docs/*.md", "notebooks/*.ipynb", "notebooks/zh/*.ipynb")
PAGES = sorted(path.relative_to(ROOT) for pattern in FOLDERS for path in ROOT.glob(pattern))


@pytest.mark.parametrize("path", PAGES, ids=str)
def test_every_name_exists(path):
    page = read(path)
    found = mistakes(page)
    assert not found, "\n".join(found)
    if path.name == "FINDINGS.md":
        assert set(re.findall(r"FINDINGS\.md#([\w-]+)", code())) <= page.anchors


# The glossary and the questions have other parts in Chinese.
FREE = {"glossary.zh-CN.md", "faq.zh-CN.md", "from_minimind.zh-CN.md"}


@pytest.mark.parametrize("path", [p for p in PAGES if p.match("*.zh-CN.md") and p.name not in FREE], ids=str)
def test_a_chinese_page_has_the_same_numbers_and_the_same_code(path):
    english = ROOT / str(path).replace(".zh-CN", "")
    found = differences(read(english).text, read(ROOT / path).text)
    assert not found, "\n".join(found)


# a right text, the same with one mistake, and what is said about it
MISTAKES = [
    ("[a](README.md)", "[a](READ.md)", "the link READ.md leads nowhere"),
    ("# One two\n[a](#one-two)", "# One three\n[a](#one-too)", "no heading makes #one-too"),
    ("[a](docs/sft.md#what-is-evaluated)", "[a](docs/sft.md#what-is-evaluate)", "did you mean what-is-evaluated?"),
    ('<img src="docs/images/live.png">', '<img src="docs/live.png">', "docs/live.png leads nowhere"),
    ("`model/attention.py`", "`model/atention.py`", "did you mean model/attention.py?"),
    ("`runs/demo/metrics.jsonl`", "`runs/demo/metric.jsonl`", "no file `runs/demo/metric.jsonl`"),
    ("`configs/*.yaml`", "`configs/*.yml`", "no file `configs/*.yml`"),
    ("`model.num_key_value_heads`", "`model.num_kv_heads`", "`model.num_kv_heads` is no key"),
    ("`eval.page.viewer`", "`eval.attention.viewr`", "`eval.attention.viewr` is no key and no name"),
    ("`LanguageModel`", "`LanguageModle`", "did you mean LanguageModel?"),
    ("`--versus`", "`--versuss`", "no command has the option --versuss"),
    ("`python -m data.prepare configs/x.yaml`", "`python -m data.packing`", "data.packing` runs nothing"),
    ("```\npython -m eval.attention runs/x \\\n --svg\n```", "```\npython -m eval.attention runs/x \\\n --pdf\n```",
     "eval.attention has no option --pdf"),
    ("`torchrun -m train.pretrain configs/demo.yaml`", "`torchrun -m train.pretrain configs/demos.yaml`",
     "there is no configs/demos.yaml"),
    ("```\npython -m train.pretrain configs/demo.yaml seed=1  # --no\n```",
     "```\npython -m train.pretrain configs/demo.yaml seeds=1\n```", "`seeds=1`: there is no such key"),
    ("`python -m train.pretrain configs/demo.yaml model.num_key_value_heads=2`",
     "`python -m train.pretrain configs/demo.yaml model.num_key_value_heads=4`", "use 1, 2, 3, 6"),
    ("`make demo`", "`make demos`", "make has no target demos: did you mean demo?"),
    ("```yaml\nextends: demo.yaml\nmodel: {hidden_size: 72}\n```", "```yaml\nmodel: {hidden: 64}\n```", "unknown key"),
    ("```yaml\n{kind: files, path: …}\n```", "```yaml\n{kind: file, path: …}\n```", "does not match"),
    ("```yaml\ntexts: {fox: The fox}\n```", "```yaml\ntexts: {fox: 3}\n```", "a valid string"),
    ("```python\nfrom model import load\n```", "```python\nfrom model import loads\n```", "model.loads cannot be"),
    ("```python\nx = 1\n```", "```python\nx = = 1\n```", "not Python"),
    ("| a | b |\n|---|---|\n| `x\\|y` | |", "| a | b |\n|---|---|\n| `x|y` | |", "3 cells in a table of 2"),
    ("a\n===", "a\n=======", "a conflict of a merge"),
]  # fmt: skip


def test_each_mistake_of_a_broken_page_is_found():
    right, wrong, messages = (list(column) for column in zip(*MISTAKES, strict=True))
    assert mistakes(Page(Path("right.md"), "\n\n".join(right))) == []
    found = mistakes(Page(Path("wrong.md"), "\n\n".join(wrong)))
    assert [message for message in messages if message not in "\n".join(found)] == []
    assert len(found) == len(messages)


ENGLISH = "# A\nOn 2026-11-05, 1,328 and +0.03 ([3](a.md#x2)).\n```\nmake demo  # takes 6 minutes\n```\n"
CHINESE = "# 甲\n2026 年 11 月 5 日，1,328，+0.03（[3](b.md#y7)）。\n```\nmake demo  # 大约 6 分钟\n```\n"


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("1,328", "1,329", "1328 is missing"),
        ("+0.03", "-0.03", "-0.03 is only in the translation"),
        ("6 分钟", "分钟", "6 is missing"),
        ("make demo", "make demos", "a code block differs"),
        ("# 甲", "## 甲", "the headings differ"),
    ],
)
def test_what_differs_in_a_translation_is_found(right, wrong, message):
    assert differences(ENGLISH, CHINESE) == []
    assert message in "\n".join(differences(ENGLISH, CHINESE.replace(right, wrong)))

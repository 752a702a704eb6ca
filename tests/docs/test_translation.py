"""README.zh-CN.md says the same as README.md: the same sections, numbers and code."""

import pytest

from tests.docs.numbers import differences, numbers
from tests.docs.page import ROOT

pytestmark = pytest.mark.slow


def test_the_chinese_readme_has_the_same_numbers_and_the_same_code():
    text, translation = ROOT / "README.md", ROOT / "README.zh-CN.md"
    assert translation.is_file(), "README.zh-CN.md is missing"
    found = differences(text.read_text(encoding="utf-8"), translation.read_text(encoding="utf-8"))
    assert not found, "\n".join(found)


ENGLISH = """
# Headlight
In 6.2 minutes, on 2026-11-21, it has 1,328,512 parameters and a gap of +0.0338
([page 3](docs/a.md#x2)); L2 H0 has 67 %.

## Start
```
make demo        # takes 6 minutes
make test
```
| a | 0.5 |
"""
CHINESE = """
# Headlight
2026 年 11 月 21 日：用时 6.2 分钟，1,328,512 个参数，差距 +0.0338（[第 3 页](docs/b.zh.md#y7)）；L2 H0 占 67％。

## 开始
```
make demo        # 大约 6 分钟
make test
```
| a | 0.5 |
"""


def test_a_faithful_translation_has_no_difference():
    assert differences(ENGLISH, CHINESE) == []


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("6.2 分钟", "6.3 分钟", "'Headlight' ('Headlight'): 6.2 is missing"),
        ("6.2 分钟", "6 分钟", "6.2 is missing"),
        ("+0.0338", "-0.0338", "-0.0338 is only in the translation"),
        ("1,328,512", "1,328,521", "1328512 is missing"),
        ("11 月 21 日", "11 月", "21 is missing"),
        ("67％", "六成七", "67 is missing"),
        ("| 0.5 |", "| 0.5 | 0.5 |", "'Start' ('开始'): 0.5 is only in the translation"),
        ("大约 6 分钟", "大约 7 分钟", "7 is only in the translation"),
        ("make test", "make tests", "a code block differs"),
        ("```\n| a", "```\n```\nmake\n```\n| a", "1 code blocks, and 2 in the translation"),
        ("## 开始", "### 开始", "the headings differ"),
        ("## 开始\n", "", "the headings differ"),
    ],
)
def test_what_differs_is_found(right, wrong, message):
    assert right in CHINESE
    assert message in "\n".join(differences(ENGLISH, CHINESE.replace(right, wrong)))


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("1,234.5 and 1234.50", ["1234.5", "1234.50"]),
        ("2026-11-05", ["2026", "11", "5"]),
        ("L2, H0; 4 x 4", ["2", "0", "4", "4"]),
        ("−3 to +3, 3-4", ["-3", "+3", "3", "4"]),
        ("seeds 0, 1, 2", ["0", "1", "2"]),
        ("0.034, 0.067", ["0.034", "0.067"]),
        ("![](docs/4.png) https://x.y/5", []),
    ],
)
def test_numbers_of_a_line(line, found):
    assert sorted(numbers(line).elements()) == sorted(found)

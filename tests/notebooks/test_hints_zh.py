"""notebooks/hints.zh.yaml: a hint for each exercise of a notebook in Chinese, which says what the
English one says.
"""

import re

from configs.parse import parse_yaml
from tests.docs.checks import numbers
from tests.notebooks.making import ROOT

ENGLISH, CHINESE = (
    parse_yaml((ROOT / "notebooks" / name).read_text(encoding="utf-8"), name)
    for name in ("hints.yaml", "hints.zh.yaml")
)


def test_each_exercise_of_a_notebook_in_chinese_has_a_chinese_hint():
    lessons = {path.name[:2] for path in (ROOT / "notebooks" / "zh").glob("*.ipynb")}
    assert [key for key in ENGLISH if key[:2] in lessons and key not in CHINESE] == []
    assert [key for key in CHINESE if key not in ENGLISH] == []


def texts(hint: str | dict[str, str]) -> dict[str, str]:
    return {"else": hint} if isinstance(hint, str) else hint


def test_a_hint_has_the_numbers_and_the_code_of_the_english_one():
    for key, hint in CHINESE.items():
        assert list(texts(hint)) == list(texts(ENGLISH[key])), key
        for wrong, text in texts(hint).items():
            english = texts(ENGLISH[key])[wrong]
            for what in (numbers, lambda text: set(re.findall(r"`[^`]+`", text))):
                assert what(text) == what(english), f"{key}: {english} / {text}"
            assert re.search(r"[\u4e00-\u9fff]", text), key

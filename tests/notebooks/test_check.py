"""`python -m notebooks.check`: it takes right code, refuses plausible wrong code, and says in one
line what differs.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from configs.command import InputError
from notebooks import check
from notebooks.labels import BUILD as LABELS
from notebooks.start import HINTS
from tests.notebooks import mistakes_attention, mistakes_backward, mistakes_parts, mistakes_training
from tests.notebooks.making import ROOT

CHECKS = check.CHECKS
# exercise -> (what the solution has, what is wrong)
WRONG = mistakes_attention.WRONG | mistakes_backward.WRONG | mistakes_parts.WRONG | mistakes_training.WRONG
# exercise -> right answers, written differently
RIGHT = mistakes_attention.RIGHT | mistakes_backward.RIGHT | mistakes_parts.RIGHT | mistakes_training.RIGHT


@pytest.fixture
def build(tmp_path, monkeypatch) -> Path:
    """An empty folder for the reader's files."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(check, "BUILD", tmp_path)
    return tmp_path


def run(monkeypatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["notebooks.check", *arguments])
    return check.main()


SOLUTIONS = ROOT / check.SOLUTIONS


def solution(name: str) -> str:
    return (ROOT / check.SOLUTIONS / f"{name}.py").read_text(encoding="utf-8")


def judge(path: Path, name: str, code: str) -> tuple[bool, str]:
    """Judge code beside the solutions of the parts that it imports."""
    for part in check.needs(SOLUTIONS / f"{name}.py"):
        for needed in [part, *check.needs(SOLUTIONS / f"{part}.py")]:
            (path / f"{needed}.py").write_text(solution(needed).replace(".solutions.", ".build."), encoding="utf-8")
    path = path / f"{name}.py"
    path.write_text(code, encoding="utf-8")
    return check.attempt(name, path)[:2]


@pytest.mark.parametrize("name", CHECKS)
def test_the_solution_passes_and_its_stub_is_still_to_be_written(build, name, monkeypatch, capsys):
    is_right, sentence = judge(build, name, solution(name))
    assert is_right, sentence
    assert run(monkeypatch, name, "--again") == 1  # a text and a stub
    assert (text := check.text_of(name)) in capsys.readouterr().out
    assert len(text.splitlines()) <= 45, "the text takes more than a screen"
    assert max(map(len, text.splitlines())) <= 100
    assert (build / f"{name}.1.py").read_text(encoding="utf-8") == solution(name)
    assert run(monkeypatch, name) == 1
    (problem,) = capsys.readouterr().out.splitlines()  # and no hint before the first try
    assert problem.endswith("is still to be written.")
    stub = build / f"{name}.py"
    stub.write_text(stub.read_text("utf-8").replace("raise NotImplementedError", "return None", 1), "utf-8")
    assert run(monkeypatch, name) == 1
    hints = HINTS[f"build.{name}"]
    hints = [hints] if isinstance(hints, str) else hints.values()
    assert capsys.readouterr().out.splitlines()[-1].removeprefix("Hint: ") in hints


def fill(build: Path, monkeypatch) -> None:
    """Put every right answer into the folder, so that a mistake is in one part alone."""
    for name in CHECKS:
        (build / f"{name}.py").write_text(solution(name).replace(".solutions.", ".build."), encoding="utf-8")
    monkeypatch.setattr(check, "needs", lambda path: [])  # each part was right when it was alone


@pytest.mark.parametrize("variant", ["", pytest.param("7", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", CHECKS)
def test_wrong_answers_are_refused_each_in_a_sentence_and_with_a_hint(build, monkeypatch, name, variant):
    """`pytest -s` shows the table: every mistake, whether it is refused, and the sentence that the reader gets."""
    monkeypatch.setenv("HEADLIGHT_VARIANT", variant)
    fill(build, monkeypatch)
    path = build / f"{name}.py"
    code = path.read_text(encoding="utf-8")
    rows = []
    for right, wrong in WRONG[name]:
        assert code.count(right) == 1, f"the solution changed, so change the mistake: {right}"
        path.write_text(code.replace(right, wrong), encoding="utf-8")
        rows.append((wrong, check.attempt(name, path)))
    refused = [verdict for _, verdict in rows if not verdict.is_right]
    print(f"\n{name}: {len(rows)} mistakes, {len(refused)} refused")
    for wrong, verdict in rows:
        result = "taken" if verdict.is_right else "refused"
        print(f"  {result:<9}{' '.join(wrong.split())[:50]:<52}{verdict.sentence}")
    assert len(rows) >= 12
    assert len(refused) >= 0.95 * len(rows)
    hints = HINTS[f"build.{name}"]
    for verdict in refused:
        assert len(verdict.sentence.splitlines()) == 1
        assert len(verdict.sentence) < 400
        # what came, and what must come; or the line of the reader's code that raises
        assert " must " in verdict.sentence or " raises " in verdict.sentence
        assert verdict.hint, "another part was refused, not this one"
    if not isinstance(hints, str) and not variant:
        unused = [hint for key, hint in hints.items() if key != "else" and hint not in [one.hint for one in refused]]
        assert not unused, "no mistake of the list gets this hint"


@pytest.mark.parametrize(("name", "code"), [(name, code) for name in RIGHT for code in RIGHT[name]])
def test_a_right_answer_that_is_written_differently_is_accepted(build, name, code):
    is_right, sentence = judge(build, name, f"import torch\nimport torch.nn.functional as F\n\n{code}\n")
    assert is_right, sentence


def test_every_exercise_has_a_hint_and_a_label():
    assert {f"build.{name}" for name in CHECKS} == {name for name in HINTS if name.startswith("build.")}
    assert list(LABELS) == list(CHECKS)
    for name in CHECKS:
        minutes = re.fullmatch(r".+\. (\d+) minutes\.", check.text_of(name).splitlines()[0])[1]
        assert LABELS[name].minutes == int(minutes), name


@pytest.mark.parametrize(
    ("code", "complaint"),
    [
        ("def softmax(x):\n    return x.exp() / oops", "line 2: `return x.exp() / oops` raises NameError: name 'oops'"),
        ("def softmax(x)\n    return x", "line 1: SyntaxError: expected ':'"),
        ("import torch\n\ntorch.nowhere", "line 3: `torch.nowhere` raises AttributeError"),
        ("def soft(x):\n    return x", "softmax.py has no `softmax`"),
        ("def softmax(x):\n    x.exp()", "returns None, and must return a result: is there a `return`?"),
        ("def softmax(x):\n    return x.softmax(-1).tolist()", "is a list, and must be a tensor"),
        ("def softmax(x):\n    return x.softmax(-1)[0]", "has the shape (3,), and must have the shape (2, 3)"),
        ("def softmax(x):\n    return x.softmax(0)", "[0, 0] is 0.73106, and must be 0.090031 (6 of 6"),
        ("raise SystemExit('done')", "line 1: `raise SystemExit('done')` raises SystemExit: done"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line_with_the_place_in_the_readers_file(build, code, complaint):
    is_right, sentence = judge(build, "softmax", code)
    assert not is_right
    assert complaint in sentence
    assert "\n" not in sentence


def test_the_list_says_what_is_done_and_what_comes_next(build, monkeypatch, capsys):
    (build / "softmax.py").write_text(f"{solution('softmax')}\nprint('mine')", encoding="utf-8")
    assert run(monkeypatch, "softmax") == 0
    assert capsys.readouterr().out.startswith("mine\nRight. ")
    assert run(monkeypatch) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:5] for line in lines[2 : len(CHECKS) + 2]] == [
        ["done" if name == "softmax" else "open", name, *map(str, LABELS[name])] for name in CHECKS
    ]
    assert lines[-1].startswith(f"1 of {len(CHECKS)} are done. ")


def test_json_is_one_object_for_a_class_and_names_nobody(build, monkeypatch, capsys):
    monkeypatch.setenv("HEADLIGHT_VARIANT", "anna")
    (build / "softmax.py").write_text(f"{solution('softmax')}\nprint('mine')", encoding="utf-8")
    (build / "rope.py").write_text(f"open({str(Path.home() / 'secret')!r})", encoding="utf-8")
    assert run(monkeypatch, "--json", "softmax", "rope", "mlp") == 0
    printed = capsys.readouterr().out
    report = json.loads(printed)
    assert (report["headlight"], report["variant"]) == ("0.2.0", "anna")
    rows = report["exercises"]
    assert [(row["exercise"], row["state"], row["minutes"]) for row in rows] == [
        ("softmax", "done", 5), ("rope", "open", 25), ("mlp", "open", 5)
    ]  # fmt: skip
    assert "FileNotFoundError" in rows[1]["sentence"]
    assert str(Path.home()) not in printed
    with pytest.raises(InputError, match="no exercise 'rop'"):
        run(monkeypatch, "--json", "rop")


@pytest.mark.slow
@pytest.mark.parametrize("variant", range(10))
def test_a_right_answer_is_right_in_every_variant(build, monkeypatch, variant):
    monkeypatch.setenv("HEADLIGHT_VARIANT", str(variant))
    fill(build, monkeypatch)
    for name in CHECKS:
        verdict = check.attempt(name, build / f"{name}.py")
        assert verdict.is_right, f"{name}: {verdict.sentence}"


def test_a_variant_has_other_numbers(build, monkeypatch):
    path = build / "repeat_kv.py"
    path.write_text(solution("repeat_kv").replace("math.sqrt(size)", "size"), encoding="utf-8")
    sentences = set()
    for variant in ("", "anna", "ben", "anna"):
        monkeypatch.setenv("HEADLIGHT_VARIANT", variant)
        sentences.add(check.attempt("repeat_kv", path).sentence)
    assert len(sentences) == 3


def test_an_unknown_name_is_bad_input_with_the_list(build, monkeypatch):
    with pytest.raises(InputError, match="no exercise 'sotfmax', did you mean softmax?"):
        run(monkeypatch, "sotfmax")

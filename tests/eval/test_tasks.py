"""The command `eval.tasks`: minimal pairs as a second scorer sees them, the built-in world, tables, bad input."""

import json
import math
import os
import re
import shutil
import tempfile
from pathlib import Path

import pytest
import torch

from data import load_tokenizer
from data.config import StoryworldSource, TokenizerConfig
from data.storyworld import parse, tell
from data.tokenizer import train_tokenizer
from eval.questions import ask, figures, held_out_questions, score
from eval.tasks.minimal_pairs import storyworld_pairs
from model import load, save
from tests.conftest import random_model, tiny_config
from tests.eval.scoring import CLOSE, Reference, answer, blimp, command
from tests.train.helpers import REPOSITORY, write_config

SHARED = Path(os.environ.get("HEADLIGHT_SHARED", REPOSITORY.parent / "shared")) / "data"
PAIRS = [
    ("The cat sat.", "The cat sit on the mat."),
    ("They all went home.", "They all goes home."),
    ("the dog sat by the door", "the dog by sat the door"),
    ("A fox ran.", "A fox ran."),  # a tie
    ("It was a small fox, and it ran to the door.", "It were a small fox."),
]


def zorro(file, pairs):
    file.write_text("".join(f"{bad}\n{good}\n" for good, bad in pairs), encoding="utf-8")
    return file


# Minimal pairs


def test_minimal_pairs_are_those_of_the_reference(checkpoint, reference, capsys, tmp_path):
    file = blimp(tmp_path / "pairs.jsonl", PAIRS)
    told, records = answer(capsys, tmp_path, checkpoint, "--minimal-pairs", file)
    expected = [(reference.sentence(good), reference.sentence(bad)) for good, bad in PAIRS]
    for record, (good, bad) in zip(records, expected, strict=True):
        assert record["log_likelihood_good"] == pytest.approx(good, abs=CLOSE)
        assert record["log_likelihood_bad"] == pytest.approx(bad, abs=CLOSE)
    assert [record["where"] for record in records] == [f"{file}:{n}" for n in range(1, 6)]
    share = (sum(good > bad for good, bad in expected[:3] + expected[4:]) + 0.5) / 5
    assert told["results"]["pairs.jsonl"] == {
        "pairs": 5,
        "accuracy": pytest.approx(share),
        "accuracy_stderr": pytest.approx(math.sqrt(share * (1 - share) / 5)),
        "ties": 1,
        "chance": 0.5,
    }
    assert "mean" not in told


def test_the_better_of_two_sentences_wins_whichever_comes_first(checkpoints, capsys, tmp_path):
    told = []
    for name, pairs in (("right", PAIRS), ("twisted", [(bad, good) for good, bad in PAIRS])):
        file = blimp(tmp_path / f"{name}.jsonl", pairs)
        told.append(answer(capsys, tmp_path, checkpoints["bpe"], "--minimal-pairs", file)[0]["results"][file.name])
    assert told[0]["accuracy"] + told[1]["accuracy"] == 1
    assert told[0]["accuracy"] != 0.5


def test_zorro_and_blimp_say_the_same_in_two_forms(checkpoints, capsys, tmp_path):
    folder = tmp_path / "both"
    blimp(folder / "a.jsonl", PAIRS)
    zorro(folder / "b.txt", PAIRS)
    (folder / "SOURCE.md").write_text("where it is from\n")
    told, records = answer(capsys, tmp_path, checkpoints["bpe"], "--minimal-pairs", folder)
    assert list(told["results"]) == ["a.jsonl", "b.txt"]
    one, other = told["results"].values()
    assert one == other
    assert told["mean"] == one | {
        "pairs": 10,
        "ties": 2,
        "accuracy_stderr": pytest.approx(one["accuracy_stderr"] / math.sqrt(2)),
    }
    assert [record["where"] for record in records[5:]] == [f"{folder / 'b.txt'}:{n}" for n in (1, 3, 5, 7, 9)]
    limited, records = answer(capsys, tmp_path, checkpoints["bpe"], "--minimal-pairs", folder, "--limit", 2)
    assert [one["pairs"] for one in limited["results"].values()] == [2, 2]
    assert len(records) == 4


def test_every_file_counts_alike_in_the_mean(checkpoints, capsys, tmp_path):
    long, short = PAIRS[:3] * 4, [PAIRS[4]]
    for name, pairs in (("long", long), ("short", short)):
        blimp(tmp_path / "folder" / f"{name}.jsonl", pairs)
    told, _ = answer(capsys, tmp_path, checkpoints["bpe"], "--minimal-pairs", tmp_path / "folder")
    accuracies = [one["accuracy"] for one in told["results"].values()]
    errors = [one["accuracy_stderr"] for one in told["results"].values()]
    assert accuracies[0] != accuracies[1]
    assert told["mean"]["accuracy"] == pytest.approx(sum(accuracies) / 2)
    assert told["mean"]["accuracy_stderr"] == pytest.approx(math.sqrt(errors[0] ** 2 + errors[1] ** 2) / 2)


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.is_dir(), reason=f"no {SHARED}: set HEADLIGHT_SHARED to look elsewhere")
@pytest.mark.parametrize("name", ["blimp/npi_present_1.jsonl", "zorro/case-subjective_pronoun.txt"])
def test_real_minimal_pairs_are_those_of_the_reference(checkpoints, capsys, tmp_path, name):
    told, records = answer(capsys, tmp_path, checkpoints["bpe"], "--minimal-pairs", SHARED / name, "--limit", 25)
    reference, right = Reference(checkpoints["bpe"]), 0
    lines = (SHARED / name).read_text(encoding="utf-8").splitlines()
    for n, record in enumerate(records):
        if name.endswith(".txt"):
            bad, good = lines[2 * n : 2 * n + 2]
        else:
            good, bad = (json.loads(lines[n])[f"sentence_{which}"] for which in ("good", "bad"))
        expected = reference.sentence(good), reference.sentence(bad)
        assert (record["log_likelihood_good"], record["log_likelihood_bad"]) == pytest.approx(expected, abs=CLOSE)
        right += expected[0] > expected[1]
    assert told["results"][Path(name).name]["accuracy"] == right / 25


def test_a_twin_of_a_story_has_one_other_name_and_cannot_be_told():
    pairs = storyworld_pairs(StoryworldSource(validation_documents=40), 30)
    assert len(pairs) == 30
    swapped = []
    for pair in pairs:
        story = tell(0, int(pair.where.split()[-1]), "validation")
        assert pair.good == story.text
        with pytest.raises(ValueError, match="character"):
            parse(pair.bad)
        good, bad = pair.good.split(), pair.bad.split()
        ((here, there),) = [(one, other) for one, other in zip(good, bad, strict=True) if one != other]
        names = set(story.people.values())
        at = next(n for n, (one, other) in enumerate(zip(good, bad, strict=True)) if one != other)
        told_before = " ".join(good[:at])
        found = [next(name for name in names if name in word) for word in (here, there)]
        assert found[0] != found[1]
        assert all(name in told_before for name in found)  # both can be copied; one is right
        swapped.append(told_before.count(found[0]))
    assert max(swapped) > 3  # not always the first mention after both are known


def test_characters_that_the_tokenizer_does_not_know_are_reported(checkpoints, capsys, tmp_path):
    pairs = blimp(tmp_path / "pairs.jsonl", [("The cat ß.", "The cat Ü."), ("ß ran.", "The fox ran.")])
    code, out, err = command(capsys, checkpoints["char"], "--minimal-pairs", pairs)
    assert code == 0
    assert "| pairs.jsonl | 2 | " in " ".join(out.split())
    assert "| 1 | 50.0% |" in " ".join(out.split())  # both unknown: a tie
    assert err == "3 characters are unknown to the tokenizer: one and the same token stands for all of them\n"
    assert command(capsys, checkpoints["bpe"], "--minimal-pairs", pairs)[2] == ""


def test_the_table_for_people(checkpoints, capsys, tmp_path):
    blimp(tmp_path / "folder/a.jsonl", PAIRS[:4])
    blimp(tmp_path / "folder/b.jsonl", PAIRS[:4])
    out = command(capsys, checkpoints["bpe"], "--minimal-pairs", tmp_path / "folder")[1]
    told = json.loads(command(capsys, checkpoints["bpe"], "--minimal-pairs", tmp_path / "folder", "--json")[1])
    one, mean = told["results"]["a.jsonl"], told["mean"]
    assert [" ".join(line.split()) for line in out.splitlines() if "---" not in line] == [
        "| file | pairs | accuracy | ties | chance |",
        f"| a.jsonl | 4 | {one['accuracy']:.1%} ± {one['accuracy_stderr']:.1%} | 1 | 50.0% |",
        f"| b.jsonl | 4 | {one['accuracy']:.1%} ± {one['accuracy_stderr']:.1%} | 1 | 50.0% |",
        f"| mean of 2 files | 8 | {mean['accuracy']:.1%} ± {mean['accuracy_stderr']:.1%} | 2 | 50.0% |",
    ]
    (tmp_path / "a.txt").write_text("ok")
    code, out, err = command(capsys, checkpoints["byte"], "--text", tmp_path / "a.txt")
    assert (code, err) == (0, "")
    header, _, loss, *_ = (" ".join(line.split()) for line in out.splitlines())
    assert header == "| a.txt: 2 tokens, 2 bytes | measured | chance |"
    assert loss.startswith("| loss (nats a token) | ")
    assert loss.endswith(f" | {math.log(320):.4f} |")
    (tmp_path / "a.txt").write_text("o")  # a single token says nothing about its scatter
    told = json.loads(command(capsys, checkpoints["byte"], "--text", tmp_path / "a.txt", "--json")[1])
    assert told["results"]["a.txt"]["loss_stderr"] is None


# A run, not only a checkpoint directory; and the built-in world


@pytest.fixture(scope="module")
def world_run(tmp_path_factory):
    """A run directory with a config.yaml, as train.pretrain leaves it, of a model with random weights."""
    run = tmp_path_factory.mktemp("world") / "run"
    step = run / "checkpoints" / "step_00000001"
    texts = [tell(0, n, "validation").text for n in range(10)]
    tokenizer = train_tokenizer(TokenizerConfig(kind="bpe", vocab_size=640), texts)
    torch.manual_seed(1)
    save(random_model(tiny_config(vocab_size=tokenizer.vocab_size, max_position_embeddings=700)), step)
    tokenizer.save(step)
    (run / "checkpoints" / "latest").write_text("step_00000001\n")
    source = {"kind": "storyworld", "documents": 30, "validation_documents": 6}
    write_config(tmp_path_factory.mktemp("config"), data={"source": source}).rename(run / "config.yaml")
    return run


def test_the_pairs_of_the_built_in_world_are_scored(world_run, capsys, tmp_path):
    told, records = answer(capsys, tmp_path, world_run, "--minimal-pairs", "storyworld")
    pairs = storyworld_pairs(StoryworldSource(validation_documents=6))
    reference = Reference(world_run / "checkpoints" / "step_00000001")
    assert [record["where"] for record in records] == [pair.where for pair in pairs] != []
    assert told["checkpoint"] == str(world_run / "checkpoints" / "step_00000001")
    assert told["results"]["held-out stories"]["pairs"] == len(pairs)
    assert records[0]["log_likelihood_bad"] == pytest.approx(reference.sentence(pairs[0].bad), abs=5 * CLOSE)


def test_a_window_longer_than_the_rows_of_training_is_reported(world_run, capsys, tmp_path):
    (tmp_path / "text.txt").write_text(tell(0, 3, "validation").text)
    err = command(capsys, world_run, "--text", tmp_path / "text.txt")[2]
    assert re.fullmatch(r"trained on rows of 32 tokens, read in windows of \d+: --window 32 may well do better\n", err)
    step = world_run / "checkpoints" / "step_00000001"
    assert command(capsys, step, "--text", tmp_path / "text.txt")[2] == err
    err = command(capsys, world_run, "--text", tmp_path / "text.txt", "--window", 32)[2]
    assert err == "windows of 32 tokens, 16 apart\n"


def test_questions_are_those_of_eval_questions(world_run, capsys, tmp_path):
    told, records = answer(capsys, tmp_path, world_run, "--questions")
    lm, tokenizer = load(world_run), load_tokenizer(world_run)
    source = StoryworldSource(validation_documents=6)
    for new_names, ending in ((False, ""), (True, ", new names")):
        asked = list(held_out_questions(source, new_names=new_names))
        known = figures(score(asked, ask(lm, tokenizer, asked)))
        all_of_them = told["results"][f"all{ending}"]
        assert all_of_them["questions"] == known["asked"] == len(asked)
        assert (all_of_them["exact_match"], all_of_them["chance"]) == (known["exact_match"], known["chance"])
        assert all_of_them["best_guess"] == known["guess"]
        share = known["exact_match"]
        assert all_of_them["exact_match_stderr"] == pytest.approx(math.sqrt(share * (1 - share) / len(asked)))
        said = [record for record in records if record["new_names"] is new_names]
        assert [record["right"] for record in said] == [question.reply for question in asked]
    code, out, _ = command(capsys, world_run, "--questions", "--limit", 2)
    assert code == 0
    assert "| all, new names | 2 | 0.0% ± 0.0% |" in " ".join(out.split())


# Bad input


def test_bad_input_is_one_line_and_exit_code_2(checkpoints, world_run, capsys, tmp_path):
    def file(name, text):
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        (folder / name).write_bytes(text.encode() if isinstance(text, str) else text)
        return folder / name

    run, good = checkpoints["byte"], json.dumps({"sentence_good": "a", "sentence_bad": "b"})
    pairs, choices, text = "--minimal-pairs", "--multiple-choice", "--text"
    choice = {"ctx": "a", "endings": ["b", "c"], "label": 1}
    missing, empty = tmp_path / "missing.jsonl", file("empty.jsonl", "\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "run/checkpoints").mkdir(parents=True)
    long = json.dumps({"sentence_good": "a" * 95, "sentence_bad": "b" * 96})

    def changed(**fields):
        return file("choice.jsonl", json.dumps(choice) + "\n" + json.dumps(choice | fields))

    cases = [
        ([run, pairs, missing], f"{missing}: there is no such file"),
        ([run, choices, missing], f"{missing}: there is no such file"),
        ([run, text, missing], f"{missing}: there is no such file"),
        ([run, pairs, empty], "empty.jsonl: is empty: give one record a line"),
        ([run, pairs, file("e.txt", " \n")], "e.txt: is empty: give a text"),
        ([run, text, file("e.txt", " \n")], "e.txt: is empty: give a text"),
        ([run, text, tmp_path / "folder"], "folder: cannot be read: Is a directory"),
        ([run, choices, tmp_path / "folder"], "folder: is a folder: name a file"),
        ([run, pairs, tmp_path / "folder"], "the folder holds no file of these kinds: .jsonl .json .txt"),
        ([run, pairs, file("a.csv", "x")], "a.csv: is a .csv file: use .jsonl or .json or .txt"),
        ([run, pairs, file("p.jsonl", good + "\n{oops")], "p.jsonl:2: is not valid JSON"),
        ([run, pairs, file("p.jsonl", good + '\n["a"]')], "p.jsonl:2: must be an object with named fields"),
        ([run, pairs, file("p.jsonl", '{"sentence_good": "a"}')], "p.jsonl:1: has no field `sentence_bad` (it has sen"),
        ([run, pairs, file("p.jsonl", good.replace('"b"', "7"))], "p.jsonl:1: `sentence_bad` must be a text, not '7'"),
        ([run, pairs, file("p.jsonl", good.replace('b"}', ' "}'))], "p.jsonl:1: `sentence_bad` is empty"),
        ([run, pairs, file("p.jsonl", good.replace('"b"', '"\\ud800"'))], "half a surrogate pair"),
        ([run, pairs, file("p.jsonl", good + "\n" + long)], "p.jsonl:2: the bad sentence has 96 tokens"),
        ([run, pairs, file("p.txt", "a\nb\nc\n")], "p.txt:3: a bad sentence without its good twin"),
        ([run, pairs, file("p.txt", "a\nb\n\nc\n")], "p.txt:3: the line is empty"),
        ([run, pairs, file("p.txt", b"a\n\xff\n")], "p.txt:2: byte 0xff is not valid UTF-8"),
        ([run, text, file("p.txt", b"a\n\xff\n")], "p.txt:2: byte 0xff is not valid UTF-8"),
        ([run, choices, changed(ctx=None)], "choice.jsonl:2: has no field `ctx`"),
        ([run, choices, changed(endings=["b"])], "choice.jsonl:2: `endings` must be a list of two texts or more"),
        ([run, choices, changed(endings="bc")], "choice.jsonl:2: `endings` must be a list of two texts or more"),
        ([run, choices, changed(endings=["b", ""])], "choice.jsonl:2: ending 1 of `endings` is empty"),
        ([run, choices, changed(label=2)], "choice.jsonl:2: `label` is 2: it must be a whole number, 0 to 1"),
        ([run, choices, changed(label=-1)], "choice.jsonl:2: `label` is -1: it must be"),
        ([run, choices, changed(label="")], "choice.jsonl:2: `label` is '': it must be"),
        ([run, choices, changed(label=True)], "choice.jsonl:2: `label` is True: it must be"),
        ([run, choices, changed(ctx="a" * 94)], "choice.jsonl:2: the context with ending 0 has 96 tokens, and the"),
        ([tmp_path / "nothing", text, empty], "is neither a run (checkpoints/latest) nor a model directory"),
        ([tmp_path / "run", text, empty], "is neither a run (checkpoints/latest) nor a model directory"),
        ([run], "give one of --minimal-pairs, --multiple-choice, --text, --questions"),
        ([run, text, empty, "--questions"], "--text and --questions are given: give one"),
        ([run, text, empty, "--limit", "0"], "--limit is '0': it must be a whole number from 1"),
        ([run, pairs, empty, "--stride", "4"], "--stride belongs to --text: leave it out with --minimal-pairs"),
        ([run, text, empty, "--delimiter", ""], "--delimiter belongs to --multiple-choice: leave it out with --text"),
        ([run, text, empty, "--window", "97"], "--window (97) must be 2 to 96, this model's max_position_embeddings"),
        ([run, text, empty, "--window", "9", "--stride", "9"], "--stride (9) must be 1 to 8, one less than the window"),
        ([run, "--questions"], "so the held-out stories are unknown"),
        ([run, pairs, "storyworld"], "so the held-out stories are unknown"),
        ([run, text, file("a.txt", "a"), "--records", tmp_path], "--records: " + str(tmp_path) + " cannot be written"),
    ]
    if not torch.cuda.is_available():
        cases.append(([run, text, empty, "--device", "cuda"], "--device cuda: not available here: use auto or"))
    for arguments, reason in cases:
        code, out, err = command(capsys, *arguments)
        assert (code, out, err.count("\n")) == (2, "", 1), (reason, out, err)
        assert reason in err


def test_a_tokenizer_of_another_model_is_an_error(checkpoints, capsys, tmp_path):
    shutil.copytree(checkpoints["char"], tmp_path / "mixed")
    shutil.copy(checkpoints["bpe"] / "tokenizer.json", tmp_path / "mixed")
    code, _, err = command(capsys, tmp_path / "mixed", "--text", tmp_path)
    assert code == 2
    assert "mixed: the tokenizer has 320 ids, the model 64: they do not belong together" in err

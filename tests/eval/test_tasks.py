"""`eval.tasks`: every number as a second scorer sees it, the built-in world, tables, bad input."""

import json
import math
from functools import partial

import pytest
import tokenizers
import torch

from data.config import StoryworldSource, TokenizerConfig
from data.tokenizer import SPECIAL_TOKENS, Tokenizer, train_tokenizer
from eval import tasks
from eval.load_model import open_model
from eval.tasks import (
    ChoiceRecord,
    PairRecord,
    Question,
    storyworld_pairs,
    text_log_probs,
    token_log_probs,
)
from storyworld import read, tell
from tests.conftest import random_model, tiny_config
from tests.eval import scoring
from tests.train.helpers import write_config

command = partial(scoring.command, main=tasks.main)
CLOSE = 1e-4  # nats, of a whole sentence; rounding in float32 gives up to 1e-5
TEXTS = [
    "The cat sat on the mat, and the dog sat by the door.",
    "Once there was a small fox. It ran home to its friends!",
    "Who had the red kite? Nobody knew, so they all went to sleep.",
]
PAIRS = [
    ("The cat sat.", "The cat sit on the mat."),
    ("They all went home.", "They all goes home."),
    ("the dog sat by the door", "the dog by sat the door"),
    ("A fox ran.", "A fox ran."),  # a tie
    ("It was a small fox, and it ran to the door.", "It were a small fox."),
]
CHOICES = [
    {"ctx": "The dog", "endings": ["sat by the door.", "sat by the door of the house of a fox.", "flew"], "label": 0},
    {"ctx": "Once there was", "endings": ["a fox.", "the fox the."], "label": "1", "ind": 24},
    {"ctx": "Who had the kite?", "endings": ["Nobody.", "They", "It was red", "a small fox, I think"], "label": 3},
    {"ctx": "They went to ", "endings": ["sleep", " the door"], "label": 0},
]
MODELS = {
    "bpe": {},
    "char": {"qk_norm": False, "num_key_value_heads": 1},
    "byte": {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"], "qk_norm": False},
}


class Reference:
    """Return transformers' scores of a checkpoint directory: no batches, no padding."""

    def __init__(self, directory):
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.lm = AutoModelForCausalLM.from_pretrained(directory).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(directory)

    def ids(self, text):
        return [self.tokenizer.bos_token_id, *self.tokenizer(text, add_special_tokens=False)["input_ids"]]

    @torch.no_grad()
    def log_probs(self, ids):
        log_p = self.lm(torch.tensor([ids])).logits[0, :-1].double().log_softmax(-1)
        return log_p.gather(-1, torch.tensor(ids[1:])[:, None])[:, 0]

    def text(self, text, window, stride):
        """ln p of every token: the earliest window that holds it says what it may look at."""
        ids = self.ids(text)
        log_probs = []
        for at in range(1, len(ids)):
            begin = next(begin for begin in range(0, len(ids), stride) if at < begin + window)
            log_probs.append(float(self.log_probs(ids[begin : at + 1])[-1]))
        return log_probs


@pytest.fixture(scope="module", params=MODELS)
def checkpoint(request, tmp_path_factory):
    """A directory with one kind of tokenizer, and a model of another kind for each, whose weights
    are random.
    """
    folder = tmp_path_factory.mktemp("checkpoints")
    kind = request.param
    torch.manual_seed(7)
    tokenizer = train_tokenizer(TokenizerConfig(kind=kind, vocab_size=320 if kind == "bpe" else None), TEXTS * 3)
    return scoring.save_model(folder, tokenizer, max_position_embeddings=96, **MODELS[kind])


only = partial(pytest.mark.parametrize, "checkpoint", indirect=True)


@pytest.fixture(scope="module")
def reference(checkpoint):
    return Reference(checkpoint)


def answer(*arguments):
    """The printed JSON object."""
    code, out, _ = command(*arguments, "--json")
    assert code == 0
    return json.loads(out)


def scores_of(directory, path, kind):
    """Return the model's scores of the endings of each question of a file or folder."""
    questions = [question for in_file in tasks.read_questions(path, kind).values() for question in in_file]
    return tasks.score(*open_model(directory, "cpu"), questions)


def write_lines(file, records):
    file.parent.mkdir(exist_ok=True)
    file.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return file


def blimp(file, pairs):
    return write_lines(file, [{"sentence_good": good, "sentence_bad": bad, "pairID": "0"} for good, bad in pairs])


def test_minimal_pairs_are_those_of_the_reference(checkpoint, reference, tmp_path):
    """Zorro's file and BLiMP's say the same; every file of a folder counts alike in the mean."""
    folder = tmp_path / "files"
    blimp(folder / "a.jsonl", PAIRS)
    (folder / "b.txt").write_text("".join(f"{bad}\n{good}\n" for good, bad in PAIRS), encoding="utf-8")
    blimp(folder / "c.jsonl", PAIRS[4:])
    (folder / "SOURCE.md").write_text("where it is from\n")
    expected = [[float(reference.log_probs(reference.ids(text)).sum()) for text in pair] for pair in PAIRS]
    for values, both in zip(scores_of(checkpoint, folder, PairRecord)[:5], expected, strict=True):
        assert values == pytest.approx(both, abs=CLOSE)
    files = answer(checkpoint, "--minimal-pairs", folder)["results"]
    mean = files.pop("mean of 3 files")
    share = (sum(good > bad for good, bad in expected[:3] + expected[4:]) + 0.5) / 5
    assert files["a.jsonl"] == files["b.txt"]
    assert files["a.jsonl"]["acc"] == pytest.approx(share)
    assert files["a.jsonl"]["acc_stderr"] == pytest.approx(math.sqrt(share * (1 - share) / 5))
    assert (mean["questions"], mean["ties"], mean["chance"]) == (11, 2, 0.5)
    assert mean["acc"] == pytest.approx(sum(values["acc"] for values in files.values()) / 3)
    assert mean["acc_stderr"] == pytest.approx(math.hypot(*(values["acc_stderr"] for values in files.values())) / 3)
    limited = answer(checkpoint, "--minimal-pairs", folder, "--limit", 2)["results"]
    assert [limited[name]["questions"] for name in ("a.jsonl", "b.txt", "c.jsonl")] == [2, 2, 1]


def test_a_twin_of_a_story_has_one_other_name_and_cannot_be_told():
    pairs = storyworld_pairs(StoryworldSource(validation_documents=40), 30)
    assert len(pairs) == 30
    for pair in pairs:
        story = tell(0, int(pair.where.split()[-1]), "validation")
        assert pair.endings[0] == story.text
        with pytest.raises(ValueError, match="character"):
            read(pair.endings[1])
        good, bad = (ending.split() for ending in pair.endings)
        ((at, *words),) = [(n, one, two) for n, (one, two) in enumerate(zip(good, bad, strict=True)) if one != two]
        names = {name for name in story.people.values() for word in words if name in word}
        assert len(names) == 2
        # both can be copied; one is right
        assert all(name in " ".join(good[:at]) for name in names)


def test_multiple_choice_is_that_of_the_reference(checkpoint, reference, tmp_path):
    file = write_lines(tmp_path / "choices.jsonl", CHOICES)
    scores = scores_of(checkpoint, file, ChoiceRecord)
    right = {"acc": 0, "acc_norm": 0}
    for values, choice in zip(scores, CHOICES, strict=True):
        context = choice["ctx"]
        endings = choice["endings"]
        joint = ["" if context.endswith(" ") or ending.startswith(" ") else " " for ending in endings]
        wholes = [context + space + ending for space, ending in zip(joint, endings, strict=True)]
        # as in lm-evaluation-harness: what follows the bare context
        begin = len(reference.ids(context.rstrip())) - 1
        expected = [float(reference.log_probs(reference.ids(whole))[begin:].sum()) for whole in wholes]
        assert values == pytest.approx(expected, abs=CLOSE)
        norm = [value / len(ending.encode()) for value, ending in zip(expected, endings, strict=True)]
        right["acc"] += expected.index(max(expected)) == int(choice["label"])
        right["acc_norm"] += norm.index(max(norm)) == int(choice["label"])
    found = answer(checkpoint, "--multiple-choice", file)["results"]["choices.jsonl"]
    assert (found["questions"], found["ties"]) == (4, 0)
    assert {name: found[name] for name in right} == {name: count / 4 for name, count in right.items()}
    assert found["chance"] == pytest.approx((1 / 3 + 1 / 2 + 1 / 4 + 1 / 2) / 4)


def test_length_is_counted_in_bytes_and_ties_are_shared():
    # é takes two bytes: a third of a nat a byte against half of one
    accents = Question("here", "", ("ééé", "abc"), 0)
    three = [Question("here", "", ("ééé", "abc", "abc"), 1)] * 2
    found = tasks.figures([accents, *three], [[-3.0, -2.0], [-4.0, -2.0, -2.0], [-1.0, -2.0, -2.0]])
    assert (found["acc"], found["acc_norm"], found["ties"]) == (0.5 / 3, (1 + 1 / 3) / 3, 1)


def test_a_token_that_reaches_over_the_boundary_belongs_to_the_ending():
    """`ab` + `c` may be one token: then everything after the shared beginning is scored, for all
    endings alike.
    """
    vocabulary = {token: n for n, token in enumerate(["x", "a", "b", "c", "d", "ab", "bc", "abc"])}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, [("b", "c"), ("a", "b"), ("a", "bc")]))
    backend.add_special_tokens(SPECIAL_TOKENS)
    tokenizer = Tokenizer(backend)
    assert [len(tokenizer.encode(text)) for text in ("xab", "xabc", "xabd")] == [2, 2, 3]
    lm = random_model(tiny_config())
    question = Question("here", "xab", ("c", "d"), 0)
    (scores,) = tasks.score(lm, tokenizer, [question], delimiter="")
    both = [[tokenizer.bos_id, *tokenizer.encode(text)] for text in ("xabc", "xabd")]
    # after x; so is the second one, though its context has tokens of its own
    assert scores == pytest.approx([float(log_p[1:].sum()) for log_p in token_log_probs(lm, both)])


@pytest.mark.parametrize("window", [96, 16, 9, 2])
def test_a_text_is_scored_as_by_the_reference(checkpoint, reference, tmp_path, window, monkeypatch):
    text = " ".join(TEXTS) + "\r\n" + TEXTS[1]
    file = tmp_path / "text.md"
    file.write_bytes(b"\xef\xbb\xbf" + f"{text}\nThis is beyond the limit.".encode())
    if window < 96:
        monkeypatch.setattr(tasks, "trained_length", lambda run: window)
    found = answer(checkpoint, "--text", file, "--limit", 2)["results"]["text.md"]
    text = text + "\n"  # --limit counts lines
    expected = torch.tensor(reference.text(text, window, window // 2), dtype=torch.float64)
    log_probs = text_log_probs(open_model(checkpoint, "cpu")[0], reference.ids(text), window)
    assert log_probs.tolist() == pytest.approx(expected.tolist(), abs=CLOSE)
    loss = float(-expected.mean())
    per_byte = len(expected) / len(text.encode()) / math.log(2)
    assert (found["tokens"], found["bytes"]) == (len(expected), len(text.encode()))
    assert found["loss"] == pytest.approx(loss, abs=CLOSE)
    assert found["window"] == window
    assert found["perplexity"] == pytest.approx(math.exp(loss), rel=CLOSE)
    assert found["bits_per_byte"] == pytest.approx(loss * per_byte, abs=CLOSE)
    assert found["bits_per_byte_chance"] == pytest.approx(math.log(reference.lm.config.vocab_size) * per_byte)


def test_a_model_that_diverged_is_an_error():
    lm = random_model(tiny_config())
    with torch.no_grad():
        lm.lm_head.weight[3] = math.nan
    with pytest.raises(ValueError, match="logits are non-finite: its weights are damaged"):
        token_log_probs(lm, [[1, 2, 3]])


@only(["char"])
def test_characters_that_the_tokenizer_does_not_know_are_reported(checkpoint, tmp_path):
    pairs = blimp(tmp_path / "pairs.jsonl", [("The cat ß.", "The cat Ü."), ("ß ran.", "The fox ran.")])
    assert command(checkpoint, "--minimal-pairs", pairs)[2].startswith("3 characters are unknown")
    # both unknown
    assert answer(checkpoint, "--minimal-pairs", pairs)["results"]["pairs.jsonl"]["ties"] == 1


def test_a_run_is_asked_about_its_own_world_and_knows_its_rows(tmp_path):
    text = tmp_path / "text.txt"
    source = {"kind": "storyworld", "documents": 30, "validation_documents": 6}
    text.write_text(tell(0, 3, "validation").text)
    tokenizer = train_tokenizer(TokenizerConfig(kind="bpe", vocab_size=640), [text.read_text()])
    config = write_config(tmp_path, data={"source": source}).read_text()
    run = scoring.save_run(tmp_path / "run", tokenizer, config, max_position_embeddings=700)
    told = answer(run, "--minimal-pairs", "storyworld")["results"]["held-out stories"]
    assert told["questions"] == len(storyworld_pairs(StoryworldSource(validation_documents=6)))
    for directory in (run, run / "checkpoints/step_00000010"):
        assert answer(directory, "--text", text)["results"]["text.txt"]["window"] == 32


GOOD = {"sentence_good": "a", "sentence_bad": "b"}
CHOICE = {"ctx": "a", "endings": ["b", "c"], "label": 1}
BAD_INPUT = [  # a file and its lines, options, what is said
    ("p.jsonl", [], ["--minimal-pairs"], "p.jsonl: is empty"),
    ("a.csv", [b"x"], ["--minimal-pairs"], "a.csv: is, or holds, no file"),
    ("p.jsonl", [GOOD, b"{oops"], ["--minimal-pairs"], "p.jsonl:2: "),
    ("p.jsonl", [GOOD, GOOD | {"sentence_bad": "b" * 96}], ["--minimal-pairs"], "p.jsonl:2: ending 1"),
    ("p.txt", [b"a", b"b", b"c"], ["--minimal-pairs"], "p.txt:3: "),
    ("p.txt", [b"a", b"\xff"], ["--text"], "p.txt:2: "),
    ("c.jsonl", [CHOICE, CHOICE | {"label": 2}], ["--multiple-choice"], "c.jsonl:2: `label` is 2"),
    ("c.jsonl", [CHOICE, CHOICE | {"endings": ["b", ""]}], ["--multiple-choice"], "c.jsonl:2: `endings.1`"),
]


@only(["byte"])
def test_bad_input_is_one_line_and_exit_code_2(checkpoint, tmp_path):
    for name, lines, options, reason in BAD_INPUT:
        lines = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
        (tmp_path / name).write_bytes(b"\n".join([*lines, b""]))
        code, out, err = command(checkpoint, *options, tmp_path / name)
        assert (code, out, err.count("\n"), reason in err) == (2, "", 1, True), (reason, out, err)

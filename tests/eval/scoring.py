"""For the tests of `eval.tasks`: a second scorer, small checkpoints with random weights, and the command."""

import json
import sys

import pytest
import torch

from configs.command import exit_on_bad_input
from data.config import TokenizerConfig
from data.tokenizer import train_tokenizer
from eval.tasks import __main__ as tasks
from model import LanguageModel, save
from tests.conftest import random_model, tiny_config

CLOSE = 1e-4  # nats, of a whole sentence; rounding in float32 gives up to 1e-5
TEXTS = [
    "The cat sat on the mat, and the dog sat by the door.",
    "Once there was a small fox. It ran home to its friends!",
    "Who had the red kite? Nobody knew, so they all went to sleep.",
]


class Reference:
    """What transformers says about a checkpoint directory: no batches, no padding, one token at a time."""

    def __init__(self, directory):
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.lm = AutoModelForCausalLM.from_pretrained(directory).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(directory)

    def ids(self, text):
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    @torch.no_grad()
    def next_log_prob(self, before, token):
        logits = self.lm(torch.tensor([before])).logits[0, -1].double()
        return float(torch.log_softmax(logits, dim=0)[token])

    def sentence(self, text):
        total, read = 0.0, [self.tokenizer.bos_token_id]
        for token in self.ids(text):
            total += self.next_log_prob(read, token)
            read.append(token)
        return total

    def ending(self, context, whole):
        """lm-evaluation-harness's way: what comes after the tokens of the bare context, its last spaces stripped."""
        first = len(self.ids(context.rstrip()))
        ids, total = [self.tokenizer.bos_token_id, *self.ids(whole)], 0.0
        for at in range(first + 1, len(ids)):
            total += self.next_log_prob(ids[:at], ids[at])
        return total

    def text(self, text, window, stride):
        """ln p of every token: the earliest window that holds it says what it may look at."""
        ids, log_probs = [self.tokenizer.bos_token_id, *self.ids(text)], []
        for at in range(1, len(ids)):
            begin = next(begin for begin in range(0, len(ids), stride) if at < begin + window)
            log_probs.append(self.next_log_prob(ids[begin:at], ids[at]))
        return log_probs


MODELS = {
    "bpe": {},
    "char": {"qk_norm": False, "num_key_value_heads": 1},
    "byte": {
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention"],
        "qk_norm": False,
        "tie_word_embeddings": True,
    },
}


def make_checkpoints(folder):
    """A checkpoint directory for each kind of tokenizer, each with a model of another kind whose weights are random."""
    for kind, changes in MODELS.items():
        torch.manual_seed(7)
        tokenizer = train_tokenizer(TokenizerConfig(kind=kind, vocab_size=320 if kind == "bpe" else None), TEXTS * 3)
        lm = random_model(tiny_config(vocab_size=tokenizer.vocab_size, max_position_embeddings=96, **changes))
        save(lm, folder / kind)
        tokenizer.save(folder / kind)
    return {kind: folder / kind for kind in MODELS}


def command(capsys, *arguments, main=tasks.main):
    """Exit code, standard output and standard error of `python -m eval.tasks arguments…`, or of another `main`."""
    before, sys.argv = sys.argv, ["tasks", *map(str, arguments)]
    try:
        with pytest.raises(SystemExit) as stopped:
            exit_on_bad_input(main)
    finally:
        sys.argv = before
    said = capsys.readouterr()
    return stopped.value.code, said.out, said.err


def answer(capsys, tmp_path, *arguments):
    """The printed JSON object, and the lines of --records."""
    code, out, err = command(capsys, *arguments, "--json", "--records", tmp_path / "records.jsonl")
    assert (code, err) == (0, "")
    lines = (tmp_path / "records.jsonl").read_text(encoding="utf-8").splitlines()
    return json.loads(out), [json.loads(line) for line in lines]


def write_lines(file, records):
    file.parent.mkdir(exist_ok=True)
    file.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return file


def blimp(file, pairs):
    return write_lines(file, [{"sentence_good": good, "sentence_bad": bad, "pairID": "0"} for good, bad in pairs])


def learned(lm, rows, steps, lr):
    """A model, or a new one of a config, that knows rows by heart: ids, and which of them are trained on."""
    torch.manual_seed(0)
    lm = lm if isinstance(lm, LanguageModel) else LanguageModel(lm)
    lm.train()
    optimizer = torch.optim.AdamW(lm.parameters(), lr=lr)
    for _ in range(steps):
        for ids, trained in rows:
            input_ids = torch.tensor([ids])
            loss_sum, count = lm(input_ids, labels=torch.where(torch.tensor(trained), input_ids, -100))
            (loss_sum / count).backward()
            optimizer.step()
            optimizer.zero_grad()
    return lm.eval()

"""For the tests of `eval`: a command in this process, a run as a command sees it, a model that
knows rows by heart.
"""

import torch

from model import LanguageModel, save
from tests.conftest import random_model, tiny_config
from tests.processes import run_main


def command(*arguments, main, stdin=""):
    """Exit code, standard output and standard error of a command with these arguments."""
    done = run_main(main, *arguments, stdin=stdin)
    return done.returncode, done.stdout, done.stderr


def save_model(folder, tokenizer, scale=0.3, **fields):
    """A model directory with random weights and this tokenizer."""
    save(random_model(tiny_config(**{"vocab_size": tokenizer.vocab_size} | fields), scale), folder)
    tokenizer.save(folder)
    return folder


def save_run(folder, tokenizer, config: str, **fields):
    """A run directory, as far as a command sees one."""
    torch.manual_seed(0)
    save_model(folder / "checkpoints/step_00000010", tokenizer, **fields)
    (folder / "checkpoints/latest").write_text("step_00000010\n", encoding="utf-8")
    (folder / "config.yaml").write_text(config, encoding="utf-8")
    return folder


def learned(config, rows, steps, lr):
    """A model of a config that knows rows by heart: ids, and which of them are trained on."""
    torch.manual_seed(0)
    lm = LanguageModel(config).train()
    optimizer = torch.optim.AdamW(lm.parameters(), lr=lr)
    for _ in range(steps):
        for ids, trained in rows:
            input_ids = torch.tensor([ids])
            loss_sum, count = lm(input_ids, labels=torch.where(torch.tensor(trained), input_ids, -100))
            (loss_sum / count).backward()
            optimizer.step()
            optimizer.zero_grad()
    return lm.eval()

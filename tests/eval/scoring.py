"""For the tests of `eval`: a command in this process, and a model that knows rows by heart."""

import sys

import pytest
import torch

from configs.command import exit_on_bad_input
from model import LanguageModel


def command(capsys, *arguments, main):
    """Exit code, standard output and standard error of a command with these arguments."""
    before, sys.argv = sys.argv, ["command", *map(str, arguments)]
    try:
        with pytest.raises(SystemExit) as stopped:
            exit_on_bad_input(main)
    finally:
        sys.argv = before
    printed = capsys.readouterr()
    return stopped.value.code, printed.out, printed.err


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

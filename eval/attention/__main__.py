"""`python -m eval.attention runs/x [--text "..."] [--out DIR]`: draw every head of a trained run on a text."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from configs.loader import InputError, exit_on_bad_input


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m eval.attention", description=__doc__)
    parser.add_argument("run", help="a run or a checkpoint directory, for example runs/demo")
    parser.add_argument("--text", default="Once there was a fox. The fox saw a bird, and the bird saw the fox.")
    parser.add_argument("--out", help="folder of the picture; default: the run's attention folder, or this one")
    parser.add_argument("--max-tokens", type=int, default=32, help="tokens of the text that are shown")
    given = parser.parse_args()

    from data.tokenizer import load_tokenizer
    from eval.attention.capture import capture
    from eval.attention.plots import as_snapshot, mosaic
    from model import load

    try:
        lm, tokenizer = load(given.run), load_tokenizer(given.run)
        ids = [tokenizer.bos_id, *tokenizer.encode(given.text)]
        if len(ids) == 1:
            raise ValueError("--text is empty: give a few words")
        if given.max_tokens < 2:
            raise ValueError(f"--max-tokens ({given.max_tokens}) must be 2 or more")
        shown = ids[: min(given.max_tokens, lm.config.max_position_embeddings)]
        maps = capture(lm, torch.tensor([shown]))
    except ValueError as error:
        raise InputError(str(error)) from None
    is_run = (Path(given.run) / "checkpoints").is_dir()  # a checkpoint directory is left as it is
    out = Path(given.out) if given.out else Path(given.run) / "attention" if is_run else Path()
    try:
        out.mkdir(parents=True, exist_ok=True)
        mosaic(as_snapshot(maps, tokenizer.token_labels(shown)), out / "text.png", f"{given.run}: every head")
    except OSError as error:
        raise InputError(f"--out: {out} cannot be written: {error.strerror}") from None
    left_out = f" (the first {len(shown)} of {len(ids)} tokens)" if len(shown) < len(ids) else ""
    print(f"{out / 'text.png'}{left_out}")
    return 0


if __name__ == "__main__":
    exit_on_bad_input(main)

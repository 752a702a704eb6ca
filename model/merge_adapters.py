"""Make one model of adapters and their base: `python -m model.merge_adapters runs/sft_lora --out merged`.

Every command of Headlight opens adapters as they are. A whole model is for other programs, and to train new adapters
from. It computes the same, but for the rounding of W + (alpha / rank) · B A.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from configs.checkpoints import check_files, is_adapter, read_checkpoint
from configs.command import InputError, exit_on_bad_input
from model.convert_kv_heads import TOKENIZER_FILES, refuse_occupied, write_whole

if TYPE_CHECKING:
    from model.transformer import LanguageModel


def write_merged(source: Path, out: Path) -> None:
    """Write the whole model of `source`, a run or directory of adapters, with its tokenizer. Raises InputError."""
    from model.checkpoint_format import load

    def read(directory: Path) -> tuple[LanguageModel, dict[str, bytes]]:
        if not is_adapter(directory):
            raise InputError(f"{directory}: holds a whole model already, not adapters")
        refuse_occupied(out)
        check_files(directory, *TOKENIZER_FILES)
        copied = {name: (directory / name).read_bytes() for name in TOKENIZER_FILES if (directory / name).is_file()}
        return load(directory), copied

    try:
        lm, copied = read_checkpoint(source, read)
    except (OSError, ValueError) as error:
        raise InputError(str(error)) from None
    write_whole(lm, copied, out)


def main() -> int:
    parser = argparse.ArgumentParser(description="Make one model of adapters and their base.")
    parser.add_argument("source", type=Path, help="a run with adapters (its newest checkpoint) or their directory")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the model directory to write")
    given = parser.parse_args()
    write_merged(given.source, given.out)
    print(f"{given.out}: a whole model, which transformers loads")
    return 0


if __name__ == "__main__":
    exit_on_bad_input(main)

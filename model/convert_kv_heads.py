"""MHA -> GQA by mean-pooling, and back.

python -m model.convert_kv_heads RUN --num-key-value-heads 2 --out DIR
"""

from pathlib import Path

from configs.command import InputError, command_parser, exit_on_bad_input, integer
from configs.files import read_checkpoint
from model.files.checkpoint import copy_tokenizer, load, new_directory, save
from model.transformer import LanguageModel
from model.variants.surgery import convert_kv_heads


def write_converted(source: Path, num_key_value_heads: int, out: Path) -> str:
    """Convert the model of a run or a model directory; return what to print.

    `out` must be new, and appears complete or not at all. Raises InputError.
    """

    def convert(directory: Path) -> tuple[LanguageModel, LanguageModel]:
        lm = load(directory)
        try:
            converted = convert_kv_heads(lm, num_key_value_heads)
        except ValueError as error:
            raise InputError(str(error)) from None
        with new_directory(out) as folder:
            save(converted, folder)
            copy_tokenizer(directory, folder)
        return lm, converted

    models = read_checkpoint(source, convert)
    parameters = " -> ".join(f"{lm.num_parameters():,}" for lm in models)
    # float32 has 4 bytes
    sizes = [4 * lm.config.num_hidden_layers * lm.config.cache_numbers for lm in models]
    cache = " -> ".join(f"{size:,}" for size in sizes)
    # training must continue with the same data and tokenizer: those of the run's own config
    config = source / "config.yaml" if (source / "config.yaml").is_file() else "configs/YOURS.yaml"
    heads = f"num_key_value_heads={num_key_value_heads}"
    return (
        f"{models[0].config.kv_heads} -> {num_key_value_heads} key-value heads; {parameters} "
        f"parameters; {cache} bytes of key-value cache per token (float32)\n"
        f"train on:  python -m train.pretrain {config} name={out.resolve().name}_trained "
        f"init_from={out} model.{heads} seed=1 train.max_steps=N   "
        "(another seed, other rows; Ainslie et al.: N = 5 % of the steps so far)"
    )


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument(
        "source", type=Path, help="a run (its newest checkpoint) or a model directory"
    )
    option = "--num-key-value-heads"
    heads = integer(option, 1)
    parser.add_argument(option, type=heads, required=True, metavar="N", help="heads afterwards")
    out_help = "the directory to write; must be new"
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help=out_help)
    args = parser.parse_args()
    print(write_converted(args.source, args.num_key_value_heads, args.out))


if __name__ == "__main__":
    exit_on_bad_input(main)

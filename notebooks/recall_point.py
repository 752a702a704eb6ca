"""One more model for the figure of notebook 03: trained where it is missing, as large as the recorded ones."""

from __future__ import annotations

from eval.compare.pictures import Point
from eval.lookups import half_at
from eval.run_files import read_metrics
from notebooks.start import Sentence, trained

CONFIG = "configs/recall.yaml"
HEADS = 8  # query heads


def train_point(kv_heads: int, head_dim: int) -> Point:
    """A model of configs/recall.yaml with this many key/value heads of this size. It is trained once, then read again.

    Raises Sentence for what the figure has no place for.
    """
    if kv_heads not in (1, 2, 4, HEADS) or head_dim % 2 or not 4 <= head_dim <= 32:
        raise Sentence(f"{HEADS} query heads share 1, 2, 4 or 8 key/value heads; a head has an even size from 4 to 32.")
    inner, parameters, numbers = balanced(kv_heads, head_dim)
    sizes = {"num_key_value_heads": kv_heads, "head_dim": head_dim, "intermediate_size": inner}
    overrides = [f"model.{key}={value}" for key, value in sizes.items()]
    run = trained(f"recall-yours-{kv_heads}x{head_dim}", "train.pretrain", CONFIG, *overrides)
    looks = [line for line in read_metrics(run, lambda problem: None) if line["split"] == "recall"]
    ends, halves = [looks[-1]["accuracy"]], [half_at(looks)]
    return Point(str(kv_heads), head_dim, 2 * numbers, parameters, ends, halves, looks[-1]["step"])


def balanced(kv_heads: int, head_dim: int) -> tuple[int, int, int]:
    """(intermediate_size, parameters, numbers of a token in the cache): what heads save, feed-forward layers get.

    The parameters are those of the config as it is, to within one unit of the feed-forward layers. Raises Sentence
    where the heads alone take more.
    """
    from data.tokenizer import DEFAULT_VOCAB_SIZE
    from model.transformer import on_meta
    from train.config import load_run_config

    run = load_run_config(CONFIG)
    words = run.data.tokenizer.vocab_size or DEFAULT_VOCAB_SIZE

    def count(**sizes: int) -> int:
        return on_meta(run.model.model_copy(update={"vocab_size": words, **sizes})).num_parameters()

    heads = {"num_key_value_heads": kv_heads, "head_dim": head_dim}
    wanted, least = count(), count(**heads, intermediate_size=8)
    each = (count(**heads, intermediate_size=16) - least) // 8
    inner = 8 + round((wanted - least) / each)
    if inner < 8:
        raise Sentence(f"{kv_heads} heads of {head_dim} have more parameters than any model of the figure.")
    model = run.model.model_copy(update=heads)
    return inner, count(**heads, intermediate_size=inner), model.num_hidden_layers * model.cache_numbers

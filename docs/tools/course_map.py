"""Draw the map of the course: `python -m docs.tools.course_map`

docs/images/course_map.svg shows a model from the text to the next token, with the training loop
beside it, and where each notebook and each exercise is. course_map.zh-CN.svg is the same in
Chinese. Both come from the table PLACES. A test compares the files, and finds what is missing.
"""

from __future__ import annotations

import html
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from configs.command import exit_on_bad_input

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "docs" / "images"
FILES = {"en": IMAGES / "course_map.svg", "zh": IMAGES / "course_map.zh-CN.svg"}

NOTEBOOKS = {
    "00": ("from nothing", "从零开始"),
    "00a": ("tensors", "张量"),
    "00b": ("autograd", "自动求导"),
    "00c": ("a small GPT", "一个小小的 GPT"),
    "01": ("by hand", "手算注意力"),
    "02": ("positions", "位置"),
    "02b": ("masks", "掩码"),
    "03": ("MHA, GQA, MQA", "MHA、GQA、MQA"),
    "04": ("three models", "三个模型"),
    "05": ("watch it learn", "看它学习"),
    "06": ("head atlas", "头的图谱"),
    "07": ("induction by hand", "手写归纳头"),
    "08": ("fast attention", "快速注意力"),
    "09": ("caches, serving", "缓存与服务"),
    "10": ("repair the notes", "修正笔记"),
    "10b": ("fail later", "后来才出错"),
    "11": ("your own text", "你自己的文本"),
    "12": ("the ladder", "一次换一个部件"),
    "13": ("after pretraining", "预训练之后"),
    "14": ("inside", "看内部"),
}
TEXTS = {
    "title": ("The course on one map", "一张图看整门课"),
    "about": (
        "How a model turns text into the next token, how it learns, and where each notebook is.",
        "模型怎样把文本变成下一个 token，怎样学习，每个笔记本在哪里。",
    ),
    "notebook": ("a notebook", "笔记本"),
    "exercise": ("you write this part", "你来写的部分"),
    "stream": ("residual stream", "残差流"),
    "begin": ("Begin with 00.", "从 00 开始。"),
    "read": ("read", "读"),
    "add": ("add", "加"),
    "gradients": ("gradients", "梯度"),
}
MAPS = (  # the heads that are drawn: a name, and where token i looks, of six
    (("previous", "前一个"), lambda i: {max(i - 1, 0): 1.0}),
    (("induction", "归纳"), lambda i: {i - 2: 0.9, 0: 0.1} if i > 2 else {0: 1.0}),
    (("first", "第一个"), lambda i: {0: 0.85, i: 0.15 + 0.85 * (i == 0)}),
    (("all", "全部"), lambda i: dict.fromkeys(range(i + 1), 0.55)),
)


@dataclass
class Place:
    """A box of the map.

    - title, note: in English and Chinese
    - rows: a caption ("" for none), and the notebooks and exercises after it
    """

    title: tuple[str, str]
    note: tuple[str, str] = ("", "")
    rows: list[tuple[tuple[str, str], str]] = field(default_factory=list)


NONE = ("", "")
PLACES = {
    "text": Place(
        ("Text → tokens", "文本 → token"),
        ("Words and pieces of words become numbers.", "词和词的片段变成编号。"),
        [(NONE, "tokenizer bpe 11")],
    ),
    "embedding": Place(
        ("Embedding", "嵌入"),
        (
            "Each id has a row of numbers. It starts the stream.",
            "每个编号有一行数，残差流从它开始。",
        ),
        [(NONE, "00a embedding")],
    ),
    "layer": Place(
        ("A layer, many times", "一层，重复多次"),
        NONE,
        [(NONE, "12 block rmsnorm")],
    ),
    "attention": Place(
        ("Attention", "注意力"),
        (
            "Heads read other tokens. Each looks in its own way:",
            "各个头读别的 token，看的地方各不相同：",
        ),
        [
            (("scores, softmax, mixture", "分数、softmax、混合"), "01 softmax attention"),
            (("positions turn queries and keys", "位置旋转查询和键"), "02 rope"),
            (("what a token may see", "一个 token 可以看什么"), "02b causal_mask masks"),
            (("what heads learn", "头学会了什么"), "05 06 07 14"),
            (("heads that share keys", "共享键的头"), "03 repeat_kv 04"),
            (("faster, or linear", "更快，或者线性"), "08 online_softmax linear_attention"),
            (("each token is read once", "每个 token 只读一遍"), "09 kv_cache"),
            (("classic errors", "经典的错误"), "10 10b"),
        ],
    ),
    "mlp": Place(
        ("Feed-forward part", "前馈层（MLP）"),
        ("It works on each token alone.", "它单独处理每个 token。"),
        [(NONE, "mlp")],
    ),
    "logits": Place(
        ("Norm → logits", "归一化 → logits"),
        ("A score for every possible next token.", "每个可能的下一个 token 都有一个分数。"),
        [(NONE, "00c model")],
    ),
    "sampling": Place(
        ("Sampling", "采样"),
        ("One token is drawn. It joins the text.", "按概率抽出一个 token，接在文本后面。"),
        [(NONE, "sampling")],
    ),
    "batches": Place(
        ("Batches", "批次"),
        ("Rows of the text, each token once an epoch.", "文本排成行，每轮每个 token 一次。"),
        [(NONE, "batches")],
    ),
    "loop": Place(
        ("The loop", "训练循环"),
        ("Forward, backward, step, again and again.", "前向、反向、走一步，反复做。"),
        [(NONE, "00 loop")],
    ),
    "step": Place(
        ("The optimizer's step", "优化器的一步"),
        ("Every weight moves against its gradient.", "每个权重朝梯度的反方向移动。"),
        [(NONE, "optimizer_step muon")],
    ),
    "backward": Place(
        ("Backward", "反向传播"),
        ("A slope for each weight, by the chain rule.", "用链式法则求每个权重的斜率。"),
        [(NONE, "00b autograd attention_backward")],
    ),
    "loss": Place(
        ("Loss", "损失"),
        ("How surprised was the model?", "模型有多意外？"),
        [(NONE, "loss")],
    ),
    "after": Place(
        ("After pretraining", "预训练之后"),
        ("Chats, adapters, preferences, rewards.", "对话、适配器、偏好、奖励。"),
        [(NONE, "13 label_mask lora preference_loss group_advantage")],
    ),
    "whole": Place(
        ("Your whole model", "你的整个模型"),
        (
            "python -m notebooks.check assemble joins your parts and compares the losses.",
            "python -m notebooks.check assemble 把你写的部分拼起来，再比较损失。",
        ),
    ),
}

# --------------------------------------------------------------------------------------------------
# sizes, in units of the picture: 640 wide, so that a phone shows letters of about 8 points

WIDTH = 640
LEFT, MIDDLE, COLUMN = 84, 400, 428  # the model's boxes: LEFT to MIDDLE; the loop's from COLUMN
RIGHT = WIDTH - 16
STREAM = 46
PAD = 12
CHIP = 22  # height
LINE = 28
SANS = "system-ui,-apple-system,'Segoe UI',Roboto,'Noto Sans','PingFang SC','Noto Sans CJK SC'"
MONO = "ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace"
STYLE = f"""
  svg {{ --page: #fff; --box: #f6f7f9; --inner: #fff; --edge: #d5d9e0; --ink: #1b1e24;
    --soft: #5c6370; --notebook: #0b6fc2; --on: #fff; --exercise: #a84300; --tint: #fdf0e6;
    --stream: #7a2d8f; }}
  @media (prefers-color-scheme: dark) {{
    svg {{ --page: #14161a; --box: #1c1f25; --inner: #23272f; --edge: #3b424e; --ink: #e6e8ec;
      --soft: #a0a7b4; --notebook: #5fb0f5; --on: #10141a; --exercise: #f5a868; --tint: #33271c;
      --stream: #d58be8; }} }}
  text {{ font: 12.5px {SANS},sans-serif; fill: var(--ink); }}
  .title {{ font-size: 21px; font-weight: 700; }}
  .head {{ font-size: 15px; font-weight: 700; }}
  .soft {{ fill: var(--soft); }}
  .small {{ font-size: 11px; fill: var(--soft); }}
  .page {{ fill: var(--page); stroke: var(--edge); }}
  .box {{ fill: var(--box); stroke: var(--edge); }}
  .inner {{ fill: var(--inner); stroke: var(--edge); }}
  .number {{ fill: var(--notebook); }}
  .number + text {{ fill: var(--on); font-weight: 700; }}
  .write {{ fill: var(--tint); stroke: var(--exercise); }}
  .code {{ font: 12px {MONO}; fill: var(--exercise); }}
  a:hover rect {{ stroke: var(--ink); stroke-width: 2; }}
  .stream {{ fill: var(--stream); }}
  .flow {{ fill: none; stroke: var(--stream); stroke-width: 2; }}
  .loop {{ fill: none; stroke: var(--soft); stroke-width: 2; }}
  .dashed {{ stroke-dasharray: 4 4; }}
  .plus {{ fill: var(--page); stroke: var(--stream); stroke-width: 2; }}
  .word {{ fill: var(--stream); font-size: 11px; font-weight: 600; }}
  .looptip {{ fill: var(--soft); }}
""".strip("\n")


class Map:
    """The picture in one language: pieces of SVG, drawn from the top to the bottom."""

    def __init__(self, language: str) -> None:
        self.language = language
        self.pieces: list[str] = []
        self.sums: list[float] = []  # where a part of the layer adds to the stream

    def say(self, words: tuple[str, str]) -> str:
        return words[self.language == "zh"]

    def word(self, key: str) -> str:
        return self.say(TEXTS[key])

    def text(self, x: float, y: float, words: str, style: str = "", anchor: str = "start") -> None:
        kind = f' class="{style}"' if style else ""
        end = f' text-anchor="{anchor}"' if anchor != "start" else ""
        text = html.escape(words, quote=False)
        self.pieces.append(f'<text x="{x:g}" y="{y:g}"{kind}{end}>{text}</text>')

    def rectangle(
        self, x: float, y: float, width: float, height: float, style: str, r: float = 10
    ) -> None:
        size = f'width="{width:g}" height="{height:g}" rx="{r:g}"'
        self.pieces.append(f'<rect x="{x:g}" y="{y:g}" {size} class="{style}"/>')

    def arrow(self, path: str, style: str = "loop") -> None:
        tip = "flow" if style.startswith("flow") else "loop"
        self.pieces.append(f'<path d="{path}" class="{style}" marker-end="url(#{tip}-tip)"/>')

    # ----------------------------------------------------------------------------------------------

    def chip(self, x: float, y: float, name: str) -> None:
        """Draw a notebook or an exercise as a link."""
        if name in NOTEBOOKS:
            words = self.say(NOTEBOOKS[name])
            self.pieces.append(f'<a href="{self.link(name)}"><title>{name} {words}</title>')
            self.rectangle(x, y, pill(name), CHIP, "number", CHIP / 2)
            self.text(x + pill(name) / 2, y + 15.5, name, anchor="middle")
            self.text(x + pill(name) + 5, y + 15.5, words)
        else:
            self.pieces.append(f'<a href="../../notebooks/build/README.md"><title>{name}</title>')
            self.rectangle(x, y, self.width(name), CHIP, "write", 4)
            self.text(x + 7, y + 15.5, name, "code")
        self.pieces.append("</a>")

    def width(self, name: str) -> float:
        if name in NOTEBOOKS:
            return pill(name) + 5 + length(self.say(NOTEBOOKS[name]))
        return 7.25 * len(name) + 14

    def link(self, number: str) -> str:
        """Return the path of a notebook from docs/images/, in Chinese if there is one."""
        (path,) = (ROOT / "notebooks").glob(f"{number}_*.ipynb")
        chinese = path.parent / "zh" / path.name
        if self.language == "zh" and chinese.exists():
            path = chinese
        return Path(os.path.relpath(path, IMAGES)).as_posix()

    def chips(self, x: float, y: float, width: float, names: str) -> float:
        """Draw chips in lines of this width, and return the height."""
        left, top = x, y
        for name in names.split():
            if left > x and left + self.width(name) > x + width:
                left = x
                top += LINE
            self.chip(left, top, name)
            left += self.width(name) + (14 if name in NOTEBOOKS else 8)
        return top + CHIP - y

    def inside(self, name: str, x: float, y: float, width: float) -> float:
        """Draw the title, the note and the rows of a place, and return the height."""
        place = PLACES[name]
        self.text(x + PAD, y + 23, self.say(place.title), "head")
        height = 32.0
        for line in lines(self.say(place.note), width - 2 * PAD):
            self.text(x + PAD, y + height + 9, line, "soft")
            height += 17
        if name == "attention":
            height += self.heads(x + PAD, y + height + 4, width - 2 * PAD)
        for caption, names in place.rows:
            if self.say(caption):
                self.text(x + PAD, y + height + 22, self.say(caption), "soft")
                height += 23
            height += 6 + self.chips(x + PAD, y + height + 6, width - 2 * PAD, names)
        return height + PAD

    def box(self, name: str, x: float, y: float, width: float, style: str = "box") -> float:
        """Draw a place in a box, and return the box's height."""
        here = len(self.pieces)
        height = self.inside(name, x, y, width)
        self.behind(here, lambda: self.rectangle(x, y, width, height, style))
        return height

    def behind(self, here: int, draw: Callable[[], None]) -> None:
        """Draw something behind the pieces from `here` on: its size depends on them."""
        pieces = self.pieces[here:]
        del self.pieces[here:]
        draw()
        self.pieces += pieces

    def heads(self, x: float, y: float, width: float) -> float:
        """Draw where four heads look, and return the height."""
        size = 8
        for number, (name, look) in enumerate(MAPS):
            left = x + number * width / len(MAPS)
            self.pieces.append(f'<g class="stream" transform="translate({left:g} {y + 6:g})">')
            for i in range(6):
                for j in range(i + 1):
                    shade = 0.1 + 0.9 * look(i).get(j, 0)
                    place = f'x="{j * size}" y="{i * size}" width="7" height="7"'
                    self.pieces.append(f'<rect {place} opacity="{shade:.2g}"/>')
            self.pieces.append("</g>")
            self.text(left, y + 6 + 6 * size + 13, self.say(name), "small")
        return 6 + 6 * size + 22

    # ----------------------------------------------------------------------------------------------

    def draw(self) -> str:
        """Return the SVG. Each part begins where the one before it ends."""
        self.text(20, 38, self.word("title"), "title")
        self.text(20, 59, self.word("about"), "soft")
        self.legend(20, 70)
        top = 112
        start, batches = self.before_the_stream(top)
        logits = self.layer(start + 26)
        self.stream(start, logits)
        sampling, floor = self.after_the_stream(logits)
        self.loop(batches, logits, floor)
        # the next token joins the text
        self.arrow(f"M16 {sampling + 30:g} H8 V{top + 30:g} H12", "loop dashed")
        whole = floor + 18
        return self.document(whole + self.box("whole", 16, whole, RIGHT - 16) + 16)

    def before_the_stream(self, y: float) -> tuple[float, float]:
        """Draw text, batches and embedding; return where the embedding and the batches end."""
        embedding = y + self.box("text", 16, y, MIDDLE - 16) + 18
        end = embedding + self.box("embedding", 16, embedding, MIDDLE - 16)
        batches = y + self.box("batches", COLUMN, y, RIGHT - COLUMN)
        self.arrow(f"M{MIDDLE} {y + 40:g} H{COLUMN - 8}")
        leave = min(batches - 20, embedding + 30)
        self.arrow(f"M{COLUMN} {leave:g} H{MIDDLE + 14} V{embedding + 36:g} H{MIDDLE + 8}")
        return end, batches

    def layer(self, top: float) -> float:
        """Draw a layer, whose two parts read from the stream and add to it.

        Returns where the logits begin.
        """
        here = len(self.pieces)
        x = LEFT + 10
        y = top + self.inside("layer", LEFT, top, MIDDLE - LEFT)
        for name in ("attention", "mlp"):
            height = self.box(name, x, y, MIDDLE - x - 10, "inner")
            self.read_and_add(x, y + 18, y + height - 14)
            y += height + 22
        bottom = y - 12

        def several() -> None:
            for shift in (8, 4, 0):
                size = (MIDDLE - LEFT, bottom - top)
                self.rectangle(LEFT + shift, top + shift, *size, "box")

        self.behind(here, several)
        return bottom + 34

    def read_and_add(self, x: float, read: float, add: float) -> None:
        self.arrow(f"M{STREAM + 5} {read:g} H{x - 8}", "flow")
        self.text(STREAM + 9, read - 5, self.word("read"), "word")
        self.arrow(f"M{x} {add:g} H{STREAM + 19}", "flow")
        self.text(STREAM + 16, add - 8, self.word("add"), "word")
        self.sums.append(add)

    def stream(self, start: float, logits: float) -> None:
        """Draw the residual stream from the embedding to the logits, and its sums."""
        end = logits - 10
        self.rectangle(STREAM - 5, start, 10, end + 2 - start, "stream", 2)
        self.pieces.append(f'<path d="M{STREAM - 11} {end:g} h22 l-11 11 z" class="stream"/>')
        x, y = STREAM - 14, (start + end) / 2
        place = f'x="{x}" y="{y:g}" text-anchor="middle" transform="rotate(-90 {x} {y:g})"'
        self.pieces.append(f'<text {place} class="word">{self.word("stream")}</text>')
        for y in self.sums:
            self.pieces.append(f'<circle cx="{STREAM}" cy="{y:g}" r="11" class="plus"/>')
            cross = f"M{STREAM - 6} {y:g} h12 M{STREAM} {y - 6:g} v12"
            self.pieces.append(f'<path d="{cross}" class="flow"/>')

    def after_the_stream(self, logits: float) -> tuple[float, float]:
        """Draw logits and sampling; return where the sampling begins and ends."""
        end = logits + self.box("logits", 16, logits, MIDDLE - 16)
        sampling = end + 22
        self.arrow(f"M{STREAM} {end:g} V{sampling - 8:g}")
        return sampling, sampling + self.box("sampling", 16, sampling, MIDDLE - 16)

    def loop(self, batches: float, logits: float, floor: float) -> None:
        """Draw the loop, from the loss beside the logits up to the batches."""
        width = RIGHT - COLUMN
        after = floor - self.height("after", width)
        self.box("after", COLUMN, after, width)
        loss = after - 22 - self.height("loss", width)
        self.box("loss", COLUMN, loss, width)
        leave, enter = logits + 20, min(max(logits + 20, loss + 20), loss + 60)
        self.arrow(f"M{MIDDLE} {leave:g} H{MIDDLE + 14} V{enter:g} H{COLUMN - 8}")
        # the others share the space between
        names = ("loop", "step", "backward")
        gap = (loss - batches - sum(self.height(name, width) for name in names)) / (len(names) + 1)
        above = batches
        for name in names:
            y = above + gap
            self.upwards(y, above)
            above = y + self.box(name, COLUMN, y, width)
            if name == "step":  # the weights of the layer move
                self.arrow(f"M{COLUMN} {y + 24:g} H{MIDDLE + 16}")
                self.text(
                    COLUMN + width / 2 + 9, above + gap / 2 + 4, self.word("gradients"), "small"
                )
        self.upwards(loss, above)

    def height(self, name: str, width: float) -> float:
        """Return the height of a box without drawing it."""
        here = len(self.pieces)
        height = self.box(name, 0, 0, width)
        del self.pieces[here:]
        return height

    def upwards(self, below: float, above: float) -> None:
        """Draw an arrow from a box of the loop up to the one above it."""
        self.arrow(f"M{(COLUMN + RIGHT) / 2:g} {below:g} V{above + 8:g}")

    def legend(self, x: float, y: float) -> None:
        self.rectangle(x, y, pill("01"), CHIP, "number", CHIP / 2)
        self.text(x + pill("01") / 2, y + 15.5, "01", anchor="middle")
        self.text(x + pill("01") + 6, y + 15.5, self.word("notebook"))
        x += pill("01") + 6 + length(self.word("notebook")) + 22
        self.rectangle(x, y, self.width("name"), CHIP, "write", 4)
        self.text(x + 7, y + 15.5, "name", "code")
        self.text(x + self.width("name") + 6, y + 15.5, self.word("exercise"))
        x += self.width("name") + 6 + length(self.word("exercise")) + 22
        self.text(x, y + 15.5, self.word("begin"))

    def document(self, height: float) -> str:
        size = f'viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" height="{height:g}"'
        language = "zh-CN" if self.language == "zh" else "en"
        tips = "".join(
            f'<marker id="{name}-tip" viewBox="0 0 8 8" refX="1" refY="4" markerWidth="9" '
            f'markerHeight="9" markerUnits="userSpaceOnUse" orient="auto">'
            f'<path d="M0 0 L8 4 L0 8 z" class="{style}"/></marker>'
            for name, style in (("flow", "stream"), ("loop", "looptip"))
        )
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" {size} lang="{language}">',
                f"<title>{html.escape(self.word('title'))}</title>",
                f"<style>\n{STYLE}\n</style>",
                f"<defs>{tips}</defs>",
                f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1:g}" rx="14" '
                'class="page"/>',
                *self.pieces,
                "</svg>\n",
            ]
        )


def pill(number: str) -> float:
    return 28 if len(number) == 2 else 36


def length(words: str) -> float:
    """Return the width of words in the usual size, a little too much rather than too little."""
    widths = [13 if ord(x) > 0x2E80 else 9 if x.isupper() else 6.9 for x in words]
    return sum(widths)


def lines(words: str, width: float) -> list[str]:
    """Break words into lines of this width: at spaces, and at any Chinese character."""
    result = [""]
    pieces: list[str] = []
    for word in words.split(" "):
        is_chinese = any(ord(letter) > 0x2E80 for letter in word)
        pieces += [*(list(word) if is_chinese else [word]), " "]
    for piece in pieces[:-1]:
        if length(result[-1] + piece) > width and piece not in "，。、；：）":
            result.append("")
        result[-1] += piece if result[-1] or piece != " " else ""
    return [line for line in result if line]


def main() -> None:
    for language, file in FILES.items():
        file.write_text(Map(language).draw(), encoding="utf-8")
        print(file.relative_to(ROOT))


if __name__ == "__main__":
    exit_on_bad_input(main)

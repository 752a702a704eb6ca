"""Draw the map of the course: `python -m docs.tools.course_map`

docs/images/course_map.svg shows a model from the text to the next token, with the training loop
beside it, and where each notebook and each exercise is. course_map.zh-CN.svg is the same in
Chinese. Both come from course_map.yaml. A test compares the files, and finds what is missing.
"""

import html
import os
from pathlib import Path

import yaml

from configs.command import exit_on_bad_input

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "docs" / "images"
TABLE = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
TEXTS, NOTEBOOKS, PLACES = TABLE["texts"], TABLE["notebooks"], TABLE["places"]
FILES = {"en": IMAGES / "course_map.svg", "zh": IMAGES / "course_map.zh-CN.svg"}

# The heads that are drawn: a name, and where token i looks, of six.
MAPS = (
    (["previous", "前一个"], lambda i: {max(i - 1, 0): 1.0}),
    (["induction", "归纳"], lambda i: {i - 2: 0.9, 0: 0.1} if i > 2 else {0: 1.0}),
    (["first", "第一个"], lambda i: {0: 0.85, i: 0.15 + 0.85 * (i == 0)}),
    (["all", "全部"], lambda i: dict.fromkeys(range(i + 1), 0.55)),
)

# --------------------------------------------------------------------------------------------------
# Sizes are in units of the picture: 640 wide, so that a phone shows letters of about 8 points.

WIDTH = 640
MARGIN = 16
RIGHT = WIDTH - MARGIN
LEFT, MIDDLE = 84, 400  # the layer, with the stream to its left
COLUMN = 428  # left end of the training loop
STREAM = 46  # middle of the residual stream
TOP = 112
PAD = 12
CHIP = 22  # height of a notebook or an exercise
HEADS, CHIPS, CAPTION = 76, 28, 23  # heights of the four heads and of both kinds of lines
CELL = 8
LOOP = ("batches", "loop", "step", "backward", "loss")


class Map:
    """The picture in one language: pieces of SVG, those behind before those in front."""

    def __init__(self, language: str) -> None:
        self.language = language
        self.pieces: list[str] = []

    def draw(self) -> str:
        """Return the SVG: from the text to the next token on the left, the loop on the right."""
        self.legend()

        # the left side, from the top to the bottom
        # Each place begins where the one above it ends, so a longer note moves all that is below.
        embedding = TOP + self.height("text") + 18
        stream = embedding + self.height("embedding")
        layer = stream + 26
        attention = layer + self.height("layer")
        mlp = attention + self.height("attention") + 22
        layer_end = mlp + self.height("mlp") + 10
        logits = layer_end + 34
        sampling = logits + self.height("logits") + 22
        floor = sampling + self.height("sampling")
        self.box("text", MARGIN, TOP, MIDDLE)
        self.box("embedding", MARGIN, embedding, MIDDLE)
        for shift in (8, 4, 0):  # several layers, one behind the other
            x, y = LEFT + shift, layer + shift
            self.rectangle(x, y, MIDDLE - LEFT, layer_end - layer, "box")
        self.inside("layer", LEFT, layer)
        self.box("attention", LEFT + 10, attention, MIDDLE - 10, "inner")
        self.box("mlp", LEFT + 10, mlp, MIDDLE - 10, "inner")
        self.stream(stream, logits - 10)
        self.read_and_add(attention + 18, mlp - 36)
        self.read_and_add(mlp + 18, layer_end - 24)
        self.box("logits", MARGIN, logits, MIDDLE)
        self.arrow(f"M{STREAM} {sampling - 22} v14")
        self.box("sampling", MARGIN, sampling, MIDDLE)

        # the loop goes up on the right, with equal spaces between its boxes
        after = floor - self.height("after")
        self.box("after", COLUMN, after, RIGHT)
        # what is left over is shared out, so both sides end at one height
        gap = (after - 22 - TOP - sum(map(self.height, LOOP))) / (len(LOOP) - 1)
        y = float(TOP)
        place = {}
        for name in LOOP:
            place[name] = y
            self.box(name, COLUMN, y, RIGHT)
            y += self.height(name) + gap
            if name != "loss":
                self.arrow(f"M{(COLUMN + RIGHT) / 2:g} {y:g} v{8 - gap:g}")
        gradients = place["backward"] - gap / 2 + 4
        self.text((COLUMN + RIGHT) / 2 + 9, gradients, self.say(TEXTS["gradients"]), "small")

        # between the sides: the text in rows, the loss, the new weights; then the next token
        leave = TOP + self.height("batches") - 20
        self.arrow(f"M{MIDDLE} {TOP + 40} H{COLUMN - 8}")
        self.arrow(f"M{COLUMN} {leave} H{MIDDLE + 14} V{embedding + 36} H{MIDDLE + 8}")
        self.arrow(f"M{MIDDLE} {logits + 20} h14 V{place['loss'] + 60:g} H{COLUMN - 8}")
        self.arrow(f"M{COLUMN} {place['step'] + 24:g} H{MIDDLE + 16}")
        self.arrow(f"M{MARGIN} {sampling + 30} H8 V{TOP + 30} H12", "loop dashed")

        self.box("whole", MARGIN, floor + 18, RIGHT)
        return self.document(floor + 18 + self.height("whole") + MARGIN)

    def say(self, words: list[str]) -> str:
        return words[self.language == "zh"]

    def note(self, place: dict) -> list[str]:
        return self.say(place.get("note", ["", ""])).splitlines()

    def legend(self) -> None:
        self.text(20, 38, self.say(TEXTS["title"]), "title")
        self.text(20, 59, self.say(TEXTS["about"]), "soft")
        x = self.notebook(20, 70, "01", self.say(TEXTS["notebook"])) + 22
        x = self.exercise(x, 70, "name") + 6
        self.text(x, 85.5, self.say(TEXTS["exercise"]))
        self.text(x + length(self.say(TEXTS["exercise"])) + 22, 85.5, self.say(TEXTS["begin"]))

    # ----------------------------------------------------------------------------------------------

    def height(self, name: str) -> int:
        """Return the height of a place."""
        place = PLACES[name]
        height = 32 + 17 * len(self.note(place)) + PAD
        if name == "attention":
            height += HEADS
        for line in place.get("lines", []):
            height += CHIPS if isinstance(line, str) else CAPTION
        return height

    def box(self, name: str, x: float, y: float, right: float, style: str = "box") -> None:
        self.rectangle(x, y, right - x, self.height(name), style)
        self.inside(name, x, y)

    def inside(self, name: str, x: float, y: float) -> None:
        """Draw the title, the note and the rows of a place."""
        place = PLACES[name]
        x += PAD
        self.text(x, y + 23, self.say(place["title"]), "head")
        y += 32
        for line in self.note(place):
            self.text(x, y + 9, line, "soft")
            y += 17
        if name == "attention":
            self.heads(x, y + 10)
            y += HEADS
        for line in place.get("lines", []):
            if isinstance(line, str):
                self.chips(x, y + 6, line)
                y += CHIPS
            else:
                self.text(x, y + 22, self.say(line), "soft")
                y += CAPTION

    def chips(self, x: float, y: float, names: str) -> None:
        """Draw notebooks and exercises as links, beside each other."""
        for name in names.split():
            if name in NOTEBOOKS:
                words = self.say(NOTEBOOKS[name])
                self.pieces.append(f'<a href="{self.link(name)}"><title>{name} {words}</title>')
                x = self.notebook(x, y, name, words) + 14
            else:
                link = "../../notebooks/build/README.md"
                self.pieces.append(f'<a href="{link}"><title>{name}</title>')
                x = self.exercise(x, y, name) + 8
            self.pieces.append("</a>")

    def link(self, number: str) -> str:
        """Return the path of a notebook from docs/images/, in Chinese if there is one."""
        (path,) = (ROOT / "notebooks").glob(f"{number}_*.ipynb")
        chinese = path.parent / "zh" / path.name
        if self.language == "zh" and chinese.exists():
            path = chinese
        return Path(os.path.relpath(path, IMAGES)).as_posix()

    def notebook(self, x: float, y: float, number: str, words: str) -> float:
        """Draw a number and the words beside it, and return where they end."""
        pill = 28 if len(number) == 2 else 36
        self.rectangle(x, y, pill, CHIP, "number", CHIP / 2)
        self.text(x + pill / 2, y + 15.5, number, "middle")
        self.text(x + pill + 5, y + 15.5, words)
        return x + pill + 5 + length(words)

    def exercise(self, x: float, y: float, name: str) -> float:
        """Draw the name of an exercise, and return where it ends."""
        width = 7.25 * len(name) + 14
        self.rectangle(x, y, width, CHIP, "write", 4)
        self.text(x + 7, y + 15.5, name, "code")
        return x + width

    def heads(self, x: float, y: float) -> None:
        """Draw where four heads look."""
        for name, look in MAPS:
            self.pieces.append(f'<g class="stream" transform="translate({x:g} {y:g})">')
            for i in range(6):
                for j in range(i + 1):
                    # never white: a reader should see the triangle of what a token may look at
                    shade = 0.1 + 0.9 * look(i).get(j, 0)
                    place = f'x="{j * CELL}" y="{i * CELL}" width="7" height="7"'
                    self.pieces.append(f'<rect {place} opacity="{shade:.2g}"/>')
            self.pieces.append("</g>")
            self.text(x, y + 6 * CELL + 13, self.say(name), "small")
            x += 68

    def stream(self, start: float, end: float) -> None:
        """Draw the residual stream from the embedding to the logits."""
        self.rectangle(STREAM - 5, start, 10, end + 2 - start, "stream", 2)
        self.pieces.append(f'<path d="M{STREAM - 11} {end:g} h22 l-11 11 z" class="stream"/>')
        turn = f"translate({STREAM - 14} {(start + end) / 2:g}) rotate(-90)"
        words = self.say(TEXTS["stream"])
        self.pieces.append(f'<text transform="{turn}" class="word middle">{words}</text>')

    def read_and_add(self, read: float, add: float) -> None:
        """Draw how a part of the layer reads from the stream and adds to it."""
        x = LEFT + 10
        self.arrow(f"M{STREAM + 5} {read:g} H{x - 8}", "flow")
        self.text(STREAM + 9, read - 5, self.say(TEXTS["read"]), "word")
        self.arrow(f"M{x} {add:g} H{STREAM + 19}", "flow")
        self.text(STREAM + 16, add - 8, self.say(TEXTS["add"]), "word")
        self.pieces.append(f'<circle cx="{STREAM}" cy="{add:g}" r="11" class="plus"/>')
        plus = f"M{STREAM - 6} {add:g} h12 M{STREAM} {add - 6:g} v12"
        self.pieces.append(f'<path d="{plus}" class="flow"/>')

    def text(self, x: float, y: float, words: str, style: str = "plain") -> None:
        text = html.escape(words, quote=False)
        self.pieces.append(f'<text x="{x:g}" y="{y:g}" class="{style}">{text}</text>')

    def rectangle(
        self, x: float, y: float, width: float, height: float, style: str, r: float = 10
    ) -> None:
        size = f'width="{width:g}" height="{height:g}" rx="{r:g}"'
        self.pieces.append(f'<rect x="{x:g}" y="{y:g}" {size} class="{style}"/>')

    def arrow(self, path: str, style: str = "loop") -> None:
        self.pieces.append(f'<path d="{path}" class="{style} arrow"/>')

    def document(self, height: float) -> str:
        # in the file itself: GitHub shows an SVG without any other file
        style = Path(__file__).with_suffix(".css").read_text(encoding="utf-8")
        tip = 'refX="1" refY="4" markerWidth="9" markerHeight="9" orient="auto"'
        tip += ' viewBox="0 0 8 8" markerUnits="userSpaceOnUse"'
        shape = "M0 0 L8 4 L0 8 z"
        size = f'width="{WIDTH}" height="{height:g}"'
        language = "zh-CN" if self.language == "zh" else "en"
        return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" {size} lang="{language}">
<title>{self.say(TEXTS["title"])}</title>
<style>
{style}</style>
<defs>
<marker id="flow-tip" {tip}><path d="{shape}" class="stream"/></marker>
<marker id="loop-tip" {tip}><path d="{shape}" class="looptip"/></marker>
</defs>
<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1:g}" rx="14" class="page"/>
{chr(10).join(self.pieces)}
</svg>
"""


def length(words: str) -> float:
    """Return the width of words in the usual size, a little too much rather than too little."""
    # Chinese characters begin here, and each is as wide as two Latin letters
    wide = sum(ord(letter) > 0x2E80 for letter in words)
    capitals = sum(letter.isupper() for letter in words)
    return 13 * wide + 9 * capitals + 6.9 * (len(words) - wide - capitals)


def main() -> None:
    for language, file in FILES.items():
        file.write_text(Map(language).draw(), encoding="utf-8")
        print(file.relative_to(ROOT))


if __name__ == "__main__":
    exit_on_bad_input(main)

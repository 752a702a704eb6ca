"""Write notebooks/labels.yaml into the pages: `python -m docs.tools.labels`

Each notebook gets a line below its title, and each of its exercises a line above its text, also in
notebooks/zh/. The table of notebooks/build/README.md and those of docs/syllabus*.md get their rows.
`--check` writes nothing, and exits with 1 if a page is out of date. A test does the same.
"""

import re
from pathlib import Path

import nbformat

from configs.command import InputError, command_parser, exit_on_bad_input
from notebooks.check import title_of
from notebooks.labels import BUILD, CELLS, NOTEBOOKS, Label, exercise_minutes

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "notebooks"
# A label as this program wrote it, with the blank line below.
LABEL_LINE = re.compile(r"^.*[●○]{5}.*$\n\n?", re.MULTILINE)
# check("05.2", …): the number of an exercise.
NUMBER = re.compile(r'check\(\s*"(\d\d\w?\.\d+)"')
HEADING = re.compile(r"^##+ (?:Exercise|练习).*\n\n", re.MULTILINE)
PARAGRAPH = re.compile(r"^\*\*(?:Exercise|练习)", re.MULTILINE)


def main() -> int:
    parser = command_parser(__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    args = parser.parse_args()
    is_stale = False
    for path, text in pages().items():
        if path.read_text(encoding="utf-8") == text:
            continue
        is_stale = True
        print(f"{path.relative_to(ROOT)}: {'out of date' if args.check else 'written'}")
        if not args.check:
            path.write_text(text, encoding="utf-8")
    return int(args.check and is_stale)


def pages() -> dict[Path, str]:
    """Return the text of each page with the labels of labels.yaml."""
    paths = [*sorted(FOLDER.glob("[0-9]*.ipynb")), *sorted((FOLDER / "zh").glob("*.ipynb"))]
    texts = {path: labelled_notebook(path) for path in paths}
    rows = []
    for name, (difficulty, importance, minutes) in BUILD.items():
        rows.append(f"| `{name}` | {difficulty} | {importance} | {minutes} | {title_of(name)} |")
    readme = FOLDER / "build" / "README.md"
    texts[readme] = with_rows(readme, rows)
    for path in (ROOT / "docs/syllabus.md", ROOT / "docs/syllabus.zh-CN.md"):
        texts[path] = with_rows(path, notebook_rows(is_chinese="zh" in path.name))
    return texts


# --------------------------------------------------------------------------------------------------
# notebooks


def labelled_notebook(path: Path) -> str:
    """Return a notebook with its label below the title, and a label for each exercise."""
    is_chinese = path.parent.name == "zh"
    notebook = nbformat.read(path, as_version=4)
    number = path.name.split("_")[0]
    if number not in NOTEBOOKS:
        raise InputError(f"{path.name} needs a label in notebooks/labels.yaml")
    head = notebook.cells[0]
    # the old label is removed, so that running this twice changes nothing
    title, rest = LABEL_LINE.sub("", head.source).split("\n\n", 1)
    minutes = exercise_minutes(number)
    head.source = f"{title}\n\n{head_line(NOTEBOOKS[number], minutes, is_chinese)}\n\n{rest}"
    cells = notebook.cells
    for i, cell in enumerate(cells):
        if "exercise" not in cell.metadata.get("tags", []):
            continue
        # above the cell to fill in is its text, below it the check, which has its number
        text = next(above for above in cells[i::-1] if above.cell_type == "markdown")
        check = next(below for below in cells[i:] if "check" in below.metadata.get("tags", []))
        match = NUMBER.search(check.source)
        assert match, f"{path.name}, cell {i}: its check has no number"
        label = CELLS[match[1]]
        unit = "分钟" if is_chinese else "min"
        # hard spaces, so that the label stays on one line
        line = "&nbsp;&nbsp;".join([*label.signs(), f"{label.minutes}&nbsp;{unit}"])
        text.source = with_line(text.source, line)
    # nbformat writes no line end at the end, and git would show that
    return nbformat.writes(notebook) + "\n"


def head_line(label: Label, minutes: int, is_chinese: bool) -> str:
    """Return the line below a title. A sign and its name do not break over lines."""
    difficulty, importance = label.signs()
    if is_chinese:
        line = (
            f"难度 {difficulty} · 重要性 {importance} · {label.minutes} 分钟，练习 {minutes} 分钟"
        )
    else:
        line = (
            f"Difficulty {difficulty} · importance {importance} · "
            f"{label.minutes} minutes, exercises {minutes}"
        )
    return " · ".join(part.replace(" ", "&nbsp;") for part in line.split(" · "))


def with_line(text: str, line: str) -> str:
    """Put the line below the heading of the exercise, or above its paragraph."""
    text = LABEL_LINE.sub("", text)
    heading = HEADING.search(text)
    if heading:
        position = heading.end()
    else:
        paragraph = PARAGRAPH.search(text)
        position = paragraph.start() if paragraph else 0
    return f"{text[:position]}{line}\n\n{text[position:]}"


# --------------------------------------------------------------------------------------------------
# tables


def notebook_rows(is_chinese: bool) -> list[str]:
    rows = []
    for number, label in NOTEBOOKS.items():
        (english,) = FOLDER.glob(f"{number}_*.ipynb")
        chinese = FOLDER / "zh" / english.name
        path = chinese if is_chinese and chinese.exists() else english
        note = "（英文）" if is_chinese and path == english else ""
        title = nbformat.read(path, as_version=4).cells[0].source.splitlines()[0].removeprefix("# ")
        link = f"../{path.relative_to(ROOT).as_posix()}"
        minutes = f"{label.minutes} | {exercise_minutes(number)}"
        start = f"| [{number}]({link}) {title}{note}"
        rows.append(f"{start} | {label.difficulty} | {label.importance} | {minutes} |")
    return rows


def with_rows(path: Path, rows: list[str]) -> str:
    """Return a page with these rows in the table of labels."""
    lines = path.read_text(encoding="utf-8").split("\n")
    # a page may have other tables: this one has stars, and two lines are its heading
    start = next(i for i, line in enumerate(lines) if line.startswith("| ") and "★" in line) + 2
    end = lines.index("", start)
    return "\n".join([*lines[:start], *rows, *lines[end:]])


if __name__ == "__main__":
    exit_on_bad_input(main)

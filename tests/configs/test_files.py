"""Files that are read back: torn, foreign and endless ones; and lines that a full disk cuts off."""

import json
from pathlib import Path

import pytest

from configs.files import DamagedFile, append_line, checkpoint_directory, read_json, read_lines, read_text, run_path
from tests.processes import little_room

RECORDS = [{"step": step, "text": text} for step, text in enumerate(["Füße", "猫が座った", "𝄞 und \ud800", "a\u2028b"])]


def written(file: Path, records=RECORDS) -> bytes:
    for record in records:
        append_line(file, record)
    return file.read_bytes()


def test_what_is_appended_is_read_back(tmp_path):
    written(tmp_path / "log.jsonl")
    assert read_lines(tmp_path / "log.jsonl") == RECORDS
    assert read_lines(tmp_path / "none.jsonl") == []


def test_a_disk_that_fills_up_at_any_byte_of_a_line_leaves_the_lines_before_it(tmp_path):
    whole = written(tmp_path / "log.jsonl")
    file = tmp_path / "full.jsonl"
    before = written(file, RECORDS[:2])
    for limit in range(len(before), len(before) + len(whole.splitlines(True)[2])):
        with little_room(limit), pytest.raises(OSError, match="No space left|File too large"):
            append_line(file, RECORDS[2])
        assert file.read_bytes() == before
    append_line(file, RECORDS[2])
    assert read_lines(file) == RECORDS[:3]


def test_a_log_torn_at_any_byte_is_read_without_a_word(tmp_path):
    whole = written(tmp_path / "log.jsonl")
    file = tmp_path / "torn.jsonl"
    said = []
    ends = [i + 1 for i, byte in enumerate(whole) if byte == ord("\n")]
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        # only the line end is missing
        complete = sum(end <= length for end in ends) + (length + 1 in ends)
        assert read_lines(file, said.append) == RECORDS[:complete]
    assert said == []


@pytest.mark.parametrize(
    "damaged",
    [b'{"step": 4, "los{"step": 5}', b"\xff\xfe", b"[1]", b"1" * 5000, b"[" * 9000, b'{"step": -1}', b"\0" * 99],
)
def test_a_damaged_line_in_the_middle_is_named_and_skipped(tmp_path, damaged):
    file = tmp_path / "log.jsonl"
    said = []
    written(file, RECORDS[:2])
    file.write_bytes(file.read_bytes() + damaged + b"\n")
    written(file, RECORDS[2:])
    assert [line["step"] for line in read_lines(file, said.append) if line["step"] >= 0] == [0, 1, 2, 3]
    assert [line.startswith(f"{file}:3: ") for line in said] == [True] * (damaged != b'{"step": -1}')


@pytest.mark.parametrize(
    "make", [Path.mkdir, lambda file: file.symlink_to(file.name), lambda file: file.symlink_to("no")]
)
@pytest.mark.parametrize("read", [read_text, read_json, read_lines])
def test_what_is_no_file_is_refused_at_once(tmp_path, make, read):
    make(tmp_path / "file")
    with pytest.raises(DamagedFile, match=f"^{tmp_path / 'file'}: [^\n]*$"):
        read(tmp_path / "file")


@pytest.mark.parametrize("name", ["../../other", "/etc", "..", ".", "", "a/b", "a\\b", "a\nb", "x" * 300, "a b", "é\0"])
def test_a_pointer_is_one_plain_name(tmp_path, name):
    (tmp_path / "latest").write_text(name + "\n", encoding="utf-8")
    with pytest.raises(DamagedFile, match="must hold one plain name"):
        checkpoint_directory(tmp_path / "latest")
    (tmp_path / "latest").write_text("step_00001000\n", encoding="utf-8")
    (tmp_path / "step_00001000").mkdir()
    (tmp_path / "step_00001000" / "config.json").touch()
    assert checkpoint_directory(tmp_path / "latest") == tmp_path / "step_00001000"


def test_a_value_of_another_type_is_named_by_its_key(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps({"a": {"b": "1"}}), encoding="utf-8")
    with pytest.raises(DamagedFile, match=r"a\.json: `a\.b`: must be a valid integer"):
        read_json(tmp_path / "a.json", dict[str, dict[str, int]])


# --------------------------------------------------------------------------------------------------
# names of runs


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """A working directory beside a repository with pretrained/demo."""
    repository = tmp_path / "repository"
    here = tmp_path / "here"
    (repository / "pretrained" / "demo").mkdir(parents=True)
    here.mkdir()
    monkeypatch.setattr("configs.files.ROOT", repository)
    monkeypatch.setattr("configs.files.PRETRAINED", repository / "pretrained")
    monkeypatch.chdir(here)
    return repository / "pretrained"


@pytest.mark.parametrize("name", ["demo", "runs/demo", "../repository/runs/demo"])
def test_a_run_that_is_not_trained_is_the_one_that_comes_with_us_and_one_line_says_so(shipped, capsys, name):
    assert run_path(name) == run_path(name) == shipped / "demo"
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(f"runs/demo is not trained yet: using {shipped}/demo")


def test_of_several_processes_one_says_it(shipped, monkeypatch, capsys):
    monkeypatch.setenv("RANK", "1")
    assert run_path("demo") == shipped / "demo"
    assert capsys.readouterr().err == ""


def test_what_exists_is_never_diverted(shipped, capsys):
    half = Path("runs/demo")
    empty = Path("demo")
    half.mkdir(parents=True)
    assert run_path("demo") == run_path(half) == half
    empty.mkdir()
    assert run_path("demo") == empty
    for name in ("dmeo", "runs/dmeo", "else/runs/demo", "else/demo", "runs/demo/checkpoints/latest", "."):
        assert run_path(name) == Path(name)
    assert capsys.readouterr().err == ""


def test_a_name_that_stands_for_nothing_is_one_sentence(shipped, monkeypatch):
    (shipped / "demo/checkpoints").mkdir()
    with pytest.raises(DamagedFile, match=r"^dmeo: does not exist: .*, did you mean demo\?$"):
        checkpoint_directory("dmeo")
    Path("demo").mkdir()
    with pytest.raises(DamagedFile, match="^demo: is neither a run"):
        checkpoint_directory("demo")
    monkeypatch.setattr("configs.files.PRETRAINED", Path("none"))
    with pytest.raises(DamagedFile, match="^runs/demo: does not exist: name a run that was trained$"):
        checkpoint_directory("runs/demo")


def test_without_runs_the_folder_of_those_that_come_with_us_is_served(shipped):
    assert run_path("runs") == shipped
    Path("runs").mkdir()
    assert run_path("runs") == Path("runs")

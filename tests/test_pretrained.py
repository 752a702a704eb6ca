"""The models of pretrained/: small, whole, of today's configs, and as good as when they were
trained.
"""

from itertools import islice

import pytest
import yaml

from configs.files import PRETRAINED, ROOT, checkpoints_of, read_json, read_lines
from configs.loader import flatten, load_config, validate
from eval.attention.snapshots import read_all
from eval.language_modeling import compare_with_floor
from eval.load_model import data_config, open_model
from eval.questions import ask, held_out_questions, is_right
from eval.run_files import read_metrics, read_samples
from model.export import export
from storyworld import tell
from train.config import RunConfig

RUNS = sorted(path.parent.name for path in PRETRAINED.glob("*/result.json"))
# .gitignore has the rest
FILES = ("*.*", "attention/*.npz", "attention/*.jsonl", "checkpoints/*", "checkpoints/*/*")
BITS = {"demo": 0.3090, "reader_sft": 5.7206, "small": 0.7610}  # a byte of 20 held-out stories
MOST_BYTES = 15_000_000
every_run = pytest.mark.parametrize("name", RUNS)


def test_all_of_them_are_there_and_small():
    assert RUNS == ["demo", "reader_sft", "small"]
    files = {path for files in FILES for path in PRETRAINED.glob(f"*/{files}") if path.is_file()}
    assert sum(path.stat().st_size for path in files if path.suffix not in (".png", ".gif", ".html")) < MOST_BYTES


@every_run
def test_each_is_of_todays_config(name):
    """Train it again where this fails: pretrained/README.md says how."""
    files = ROOT / "configs" / f"{name}.yaml", PRETRAINED / name / "config.yaml"
    today, then = (flatten(validate(RunConfig, load_config(file)).model_dump()) for file in files)
    assert {key: then.get(key) for key in today if today[key] is not None and key != "name"} == {
        key: value for key, value in today.items() if value is not None and key != "name"
    }  # a run writes down more: the size of its vocabulary, and keys that a default stood for


@every_run
def test_each_is_whole_and_as_good_as_it_was(name):
    run = PRETRAINED / name
    problems = list[str]()
    result = read_json(run / "result.json")
    assert [*checkpoints_of(run)] == [result["step"]]
    assert (
        read_metrics(run, problems.append)[-1]["step"]
        == result["step"]
        == read_samples(run, problems.append)[-1]["step"]
    )
    snapshots, damaged = read_all(run)
    looks = read_lines(run / "attention/index.jsonl", problems.append)
    assert [look["step"] for look in looks] == [snapshot.step for snapshot in snapshots]
    assert (damaged, problems) == ([], [])
    assert "## Result" in (run / "report.md").read_text(encoding="utf-8")
    lm, tokenizer = open_model(run, "cpu")
    assert lm.num_parameters() == result["parameters"]
    source = data_config(run).source
    stories = [tell(source.seed, index, "validation", source.level) for index in range(20)]
    assert compare_with_floor(lm, tokenizer, stories)[1] == pytest.approx(BITS[name], rel=3e-4)
    if "questions" in result:
        questions = [*islice(held_out_questions(source), 24)]
        assert sum(map(is_right, questions, ask(lm, tokenizer, questions))) >= 20


EXPECTED = {  # how each goes on after the text of its card
    "small": " send zeeb lights bread peeked bed river wibby send",
    "demo": " a ",
    "reader_sft": "Valza gave Hegem the net.",
}


@pytest.mark.slow
@every_run
def test_the_text_of_its_card_works_in_transformers_and_its_folder_goes_to_the_hub(name, tmp_path):
    transformers = pytest.importorskip("transformers")
    folder = tmp_path / "hub"
    export(PRETRAINED / name, "hub-folder", folder)
    metadata = yaml.safe_load((folder / "README.md").read_text(encoding="utf-8").split("---\n")[1])
    assert metadata["license"] == "apache-2.0"
    (example,) = metadata["widget"]
    pipeline = transformers.pipeline(metadata["pipeline_tag"], model=str(folder), device="cpu")
    done = pipeline(example.get("text") or example["messages"], max_new_tokens=20, do_sample=False)
    written = done[0]["generated_text"]
    reply = written.removeprefix(example["text"]) if "text" in example else written[-1]["content"]
    assert reply.startswith(EXPECTED[name])

"""The shipped configs, trained for a moment on local data of the same shape as what they name."""

import json

import pytest

from eval.load_model import open_model
from model.transformer import on_meta
from storyworld import tell
from tests.train.helpers import metrics, pretrain
from train.config import load_run_config
from train.run.sweep import plan

pytestmark = pytest.mark.slow
SMALL = """
model.hidden_size=32 model.num_hidden_layers=1 model.num_attention_heads=4 data.sequence_length=64 train.max_steps=3
train.tokens_per_step=512 train.compile=false train.precision=fp32 eval.every=3 eval.sample_tokens=4
eval.attention.every=0 tracking.wandb=disabled data.tokenizer.train_bytes=100000
""".split()


@pytest.fixture(scope="module")
def stories():
    return [tell(0, index).text for index in range(500)]


def write(path, records):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), encoding="utf-8")


def run(name, folder, *overrides):
    pretrain(f"configs/{name}.yaml", f"output_dir={folder}/runs", *SMALL, *overrides)
    newest = max((folder / "runs" / ".prepared").glob("*/manifest.json"), key=lambda file: file.stat().st_mtime_ns)
    return folder / "runs" / name, json.loads(newest.read_text(encoding="utf-8"))


def test_tinystories(tmp_path, stories):
    write(tmp_path / "hub/train.jsonl", [{"text": text} for text in [*stories, stories[0]]])
    write(tmp_path / "hub/validation.jsonl", [{"text": text} for text in stories[:20]])
    directory, manifest = run("tinystories", tmp_path, f"data.source.name={tmp_path}/hub")
    # no held-out story in both
    assert [manifest[part]["documents"] for part in ("train", "validation")] == [480, 20]
    assert manifest["read"]["duplicates"] == 21
    assert metrics(directory)


def card(folder, text):
    (folder / "README.md").write_text(f"---\nconfigs:\n{text}---\n")


def test_fineweb_edu(tmp_path, stories):
    """A subset is a named configuration of the dataset's card."""
    records = [{"text": text, "id": i, "score": 3.1} for i, text in enumerate(stories)]
    write(tmp_path / "hub/sample/10BT/000.jsonl", records)
    write(tmp_path / "hub/data/000.jsonl", [{"text": "not of the sample"}])
    subsets = {"default": "data/*", "sample-10BT": "sample/10BT/*"}
    card(
        tmp_path / "hub", "".join(f"- config_name: {name}\n  data_files: {files}\n" for name, files in subsets.items())
    )
    overrides = [f"data.source.name={tmp_path}/hub", "data.source.max_records=400", "data.validation_fraction=0.1"]
    directory, manifest = run("fineweb_edu", tmp_path, *overrides)
    assert manifest["train"]["documents"] + manifest["validation"]["documents"] == 400
    assert metrics(directory)


def test_wikitext103(tmp_path, stories):
    def lines(articles):
        for number, text in enumerate(articles):
            body = [f" {part} . \n" for part in text.split(". ")]
            yield from ["", f" = Article {number} = \n", "", *body, " = = Part = = \n"]

    write(tmp_path / "hub/raw/train.jsonl", [{"text": line} for line in lines(stories[:100])])
    write(tmp_path / "hub/raw/validation.jsonl", [{"text": line} for line in lines(stories[100:110])])
    parts = "".join(f"  - split: {split}\n    path: raw/{split}.jsonl\n" for split in ("train", "validation"))
    card(tmp_path / "hub", "- config_name: wikitext-103-raw-v1\n  data_files:\n" + parts)
    _, manifest = run("wikitext103", tmp_path, f"data.source.name={tmp_path}/hub")
    assert [manifest[part]["documents"] for part in ("train", "validation")] == [100, 10]


def test_chinese_poems(tmp_path):
    """JSON arrays as in chinese-poetry; the pattern leaves out what is beside them."""
    poems = [{"author": "x", "paragraphs": [f"明月{a}时有，", f"把酒问{b}天。"]} for a in "几何多" for b in range(60)]
    (tmp_path / "ci.song.0.json").write_text(json.dumps(poems, ensure_ascii=False), encoding="utf-8")
    (tmp_path / "author.song.json").write_text('[{"name": "x", "description": "no poem"}]', encoding="utf-8")
    directory, manifest = run("chinese_poems", tmp_path, f"data.source.path={tmp_path}/ci.song.*.json")
    assert manifest["train"]["documents"] + manifest["validation"]["documents"] == 180
    assert len(open_model(directory)[1].encode("明月几时有，\n")) == 7  # a token for every character


def test_minimind_pretraining_and_then_chat(tmp_path, stories):
    write(tmp_path / "pretrain_hq.jsonl", [{"text": f"{text} 你好，世界。"} for text in stories])
    source = f"data.source.path={tmp_path}/pretrain_*.jsonl"
    directory, _ = run("minimind_pretrain", tmp_path, source, "data.validation_fraction=0.1")
    answer = {"role": "assistant", "content": "从前有一只狐狸。", "reasoning_content": "嗯"}
    chats = [[{"role": "user", "content": f"讲第{i}个故事。"}, answer] * 2 for i in range(300)]
    chats.append(chats[0][:1])  # no answer
    write(tmp_path / "sft_mini.jsonl", [{"conversations": chat} for chat in chats])
    overrides = [f"init_from={directory}", "data.validation_fraction=0.2", "data.sequence_length=256"]
    chat, manifest = run("minimind_sft", tmp_path, f"data.source.path={tmp_path}/sft_*.jsonl", *overrides)
    (problem,) = manifest["read"]["bad_records"]
    assert problem.startswith(f"{tmp_path}/sft_mini.jsonl:301: has no assistant message")
    losses = [line["loss"] for line in metrics(chat) if line["split"] == "val"]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    ("matched", "whole"),
    [("gqa_matched", "mha"), ("mqa_matched", "mha"), ("demo_gqa_matched", "demo"), ("demo_mqa_matched", "demo")],
)
def test_matched_configs_differ_in_heads_and_width_alone_and_have_as_many_parameters(matched, whole):
    config = load_run_config(f"configs/{matched}.yaml")
    baseline = load_run_config(f"configs/{whole}.yaml")
    ours = config.identity()
    theirs = baseline.identity()
    differing = {key for key in ours if ours[key] != theirs[key]}
    assert differing == {"model.num_key_value_heads", "model.intermediate_size"}
    assert parameters(config) == pytest.approx(parameters(baseline), rel=0.005)


def test_the_three_models_differ_in_heads_and_width_alone_and_have_as_many_parameters():
    baseline, *others = [run.config for run in plan("configs/three_models.yaml", [], seeds=1)]
    assert [config.model.kv_heads for config in (baseline, *others)] == [4, 2, 1]
    for config in others:
        ours = config.identity()
        theirs = baseline.identity()
        differing = {key for key in ours if ours[key] != theirs[key]}
        assert differing == {"model.num_key_value_heads", "model.intermediate_size"}
        assert parameters(config) == pytest.approx(parameters(baseline), rel=0.003)


def test_the_demo_with_a_latent_has_its_parameters_and_the_cache_of_mqa():
    latent, mqa, demo = (load_run_config(f"configs/{name}.yaml") for name in ("mla", "demo_mqa_matched", "demo"))
    assert latent.model.cache_numbers == mqa.model.cache_numbers
    assert parameters(latent) == pytest.approx(parameters(demo), rel=0.005)


def parameters(config) -> int:
    vocabulary = config.data.tokenizer.vocab_size or 2048
    return on_meta(config.model.model_copy(update={"vocab_size": vocabulary})).num_parameters()

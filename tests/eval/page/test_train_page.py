"""docs/train.html: it computes what notebooks/page_twin.py does, and its controls do what they say."""

import json
import re
import shutil
import subprocess

import pytest
import torch

from eval.page.train_page import FILE, build, engine
from notebooks.page_twin import GROUPS, LENGTH, PROBE_ROWS, Twin, look, repeated, shuffled, stream, train
from tests.eval.page.viewer_helpers import chromium, english_in, opened

# A model in the page: its losses, its scores after that, and bytes that any difference would change.
LOSSES = """(settings, steps) => {
  const trainer = new Trainer(settings);
  const losses = Array.from({ length: steps }, () => trainer.train());
  const { gain, induction } = trainer.look();
  return { losses, gain, induction: [...induction], weights: [...trainer.parameters.values.slice(0, 500)] };
}"""
# Gradients on the probe.
GRADIENTS = """(settings, values, off, scaled, masked) => {
  const trainer = new Trainer(settings);
  trainer.parameters.values.set(values);
  Object.assign(trainer.switches, { off, scaled, masked });
  const losses = trainer.probe.forward(trainer.probeIds, trainer.probeTargets);
  trainer.probe.backward(trainer.probeIds, trainer.probeTargets);
  return [[...losses], [...trainer.parameters.gradients]];
}"""
# Three steps on, back, and three steps again; then back and on with a head off.
BACK = """(settings) => {
  const trainer = new Trainer(settings);
  const steps = (count) => Array.from({ length: count }, () => trainer.train());
  const before = steps(8);
  trainer.goTo(7);
  const from = trainer.step;
  const again = steps(3);
  trainer.goTo(5);
  trainer.switches.off[1] = 1;
  const other = steps(3);
  return { before, from, again, other, stored: [...trainer.states.keys()] };
}"""


def in_node(function: str, *values):
    """Call a function of the page's engine in node."""
    if shutil.which("node") is None:
        pytest.skip("no node on the PATH: the slow tests compute the same in Chromium")
    call = f"console.log(JSON.stringify(({function})(...{json.dumps(values)})))"
    done = subprocess.run(["node", "-"], input=engine() + call, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def settings(kind: str, seed: int = 0, heads: int = 4, layers: int = 2) -> dict[str, int]:
    return {"layers": layers, "heads": heads, "groups": max(1, GROUPS[kind] * heads // 4), "seed": seed}


def agree(kind: str, page: dict) -> None:
    twin = Twin(2, 4, GROUPS[kind], seed=0)
    losses = [loss for _, loss in train(twin, 20)]
    # the page sums in doubles, PyTorch in floats: 5e-7 apart here
    assert page["losses"] == pytest.approx(losses, abs=1e-4)
    gain, induction = look(twin)
    assert page["gain"] == pytest.approx(gain, abs=1e-4)
    assert page["induction"] == pytest.approx(induction.flatten().tolist(), abs=1e-4)


@pytest.mark.parametrize("kind", GROUPS)
def test_the_first_twenty_losses_are_the_twins(kind):
    agree(kind, in_node(LOSSES, settings(kind), 20))


@pytest.mark.parametrize(
    ("kind", "heads", "layers", "off", "scaled", "masked"),
    [
        ("mha", 4, 2, [], True, True),
        ("gqa", 4, 2, [], True, True),
        ("mqa", 8, 2, [3, 9], True, True),
        ("gqa", 8, 1, [], False, True),
        ("mha", 4, 2, [1], True, False),
    ],
)
def test_gradients_by_hand_are_those_of_autograd(kind, heads, layers, off, scaled, masked):
    shape = settings(kind, 1, heads, layers)
    twin = Twin(layers, heads, shape["groups"], seed=1, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weights in twin.weights:  # also the outputs, which begin as zero
            weights += 0.1 * torch.randn(weights.shape, generator=generator)
            weights.copy_(weights.float())
        for head in off:
            twin.on[divmod(head, heads)] = 0
    twin.scaled, twin.masked = scaled, masked
    random = stream(1, 1)
    blocks = [shuffled(random, LENGTH)[:LENGTH] for _ in range(PROBE_ROWS)]
    losses = twin.loss([[0, *block, *block] for block in blocks])
    losses.mean().backward()
    values = torch.cat([weights.detach().flatten() for weights in twin.weights])
    gradients = torch.cat([weights.grad.flatten() for weights in twin.weights])
    is_off = [int(head in off) for head in range(layers * heads)]
    page_losses, page_gradients = in_node(GRADIENTS, shape, values.tolist(), is_off, scaled, masked)
    assert page_losses == pytest.approx(losses.flatten().tolist(), abs=1e-4)
    # floats between the layers: 1e-6 of the largest gradient
    difference = (torch.tensor(page_gradients, dtype=torch.float64) - gradients).abs().max()
    assert difference < 1e-5 * gradients.abs().max()


def test_back_in_time_everything_is_as_it_was():
    seen = in_node(BACK, settings("gqa"))
    assert seen["from"] == 5
    assert seen["again"] == seen["before"][5:]
    assert seen["other"][0] != seen["again"][0] or seen["other"][1:] != seen["again"][1:]
    assert seen["stored"] == [0, 5]


def test_the_file_is_todays_page_and_needs_nothing_beside_it():
    text = FILE.read_text(encoding="utf-8")
    assert text == build(), "the page has changed: python -m eval.page.train_page"
    assert not re.search(r'(?:src|href)="(?!data:|#)', text)


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


def wait_for_step(page, step, timeout=300_000):
    page.wait_for_function(f"() => Number(document.getElementById('when').value) >= {step}", timeout=timeout)


@pytest.mark.slow
@pytest.mark.parametrize("kind", GROUPS)
def test_chromium_computes_what_the_twin_and_node_do(browser, kind):
    with opened(browser, FILE) as page:
        here = page.evaluate(f"([settings, steps]) => ({LOSSES})(settings, steps)", [settings(kind), 20])
    agree(kind, here)
    if shutil.which("node"):
        assert here == in_node(LOSSES, settings(kind), 20)  # bit for bit


@pytest.mark.slow
def test_controls(browser):
    guesses = "[...document.querySelectorAll('.symbol')].map((cell) => cell.style.getPropertyValue('--right')).join()"
    now = "document.getElementById('now').textContent"
    with opened(browser, FILE, locale="en-US") as page:
        page.click("#play")
        wait_for_step(page, 42)
        page.click(".thumbnail >> nth=0")  # it pauses: the model would repair itself
        page.wait_for_timeout(1000)  # the step under way ends
        page.click(".thumbnail >> nth=0")
        step = page.evaluate(now)
        page.wait_for_timeout(1000)
        assert page.evaluate(now) == step  # it has stopped
        page.evaluate("""() => { const slider = document.getElementById("when");
          slider.value = 40; slider.dispatchEvent(new Event("input")); }""")
        page.wait_for_function(f"() => {now} === 'step 40'")
        before = page.evaluate(guesses)
        page.click(".thumbnail >> nth=0")
        page.wait_for_selector(".thumbnail.off")
        effect = page.locator(".story .birth")
        effect.wait_for()
        assert re.fullmatch(r"L0 H0 off: guessed right \d.*% → \d.*%", effect.inner_text())
        page.wait_for_function(f"(before) => {guesses} !== before", arg=before)
        page.keyboard.press("Enter")  # the keyboard switches it on again
        page.wait_for_function(f"(before) => {guesses} === before", arg=before)
        assert effect.count() == 0
        page.click("summary")
        page.uncheck("#masked")
        page.wait_for_function(f"(before) => {guesses} !== before", arg=before)
        page.check("#masked")
        page.uncheck("#scaled")
        page.wait_for_function(f"(before) => {guesses} !== before", arg=before)
        page.click("#one")
        page.wait_for_function(f"() => {now} === 'step 41'")
        page.check('.kind input[value="MHA GQA MQA"]', force=True)
        page.wait_for_function("() => document.querySelectorAll('.panel').length === 3")


@pytest.mark.slow
def test_a_head_is_born(browser):
    with opened(browser, FILE, locale="en-US") as page:
        page.check('.kind input[value="GQA"]', force=True)
        page.click("#play")
        page.wait_for_selector(".birth", timeout=600_000)
        words = page.locator(".birth").inner_text()
    assert re.fullmatch(r"step \d+: L1 H\d learned to copy: it looks at what followed the same token last time", words)


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 390])
def test_both_languages_fit_and_are_complete(browser, width):
    for locale in ("en-US", "zh-CN"):
        with opened(browser, FILE, locale=locale, viewport={"width": width, "height": 844}) as page:
            page.check('.kind input[value="MHA GQA MQA"]', force=True)
            page.wait_for_function("() => document.querySelectorAll('.symbols').length === 3")
            page.click("#help-button")
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            if locale == "zh-CN":
                assert not english_in(page)


def test_the_controls_change_the_blocks_of_a_row():
    for step in range(20):
        row = repeated(stream(0, step), 49, shortest=8, gaps=False)
        size = row.index(row[1], 2) - 1
        assert 8 <= size <= 20
        assert row[1 + size :] == row[1:-size]  # nothing between two copies
    with_gaps = repeated(stream(0, 3), 49)
    assert with_gaps != repeated(stream(0, 3), 49, gaps=False)

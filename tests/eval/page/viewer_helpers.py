"""Snapshots with known contents, and a browser that notices whatever a page does wrong."""

from __future__ import annotations

import os
import re
import shutil
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from eval.attention.snapshots import ProbeMap, Snapshot

FLAGS = [
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking",
    "--disable-component-update --disable-sync",
]


def causal(layers: int, heads: int, length: int, seed: int) -> np.ndarray:
    """Random rows that sum to 1; head 0 of layer 0 looks at the token before, with all it has."""
    logits = 2 * np.random.default_rng(seed).standard_normal((layers, heads, length, length))
    weights = np.tril(np.exp(logits))
    weights /= weights.sum(-1, keepdims=True)
    weights[0, 0] = np.eye(length, k=-1)
    weights[0, 0, 0, 0] = 1
    return weights.astype(np.float32)


def snapshot(
    step: int, layers=(0, 1), heads=(0, 1, 2, 3), total=4, kv=2, length=12, labels=None, **changes
) -> Snapshot:
    labels = labels or [f"w{i}" for i in range(length)]
    size = (len(layers), len(heads))
    places = np.arange(size[0] * size[1], dtype=np.float32).reshape(size)
    packed = causal(*size, length, 7 * step + 2)
    fields = {
        "maps": {
            "text": ProbeMap(causal(*size, length, 7 * step), labels, left_out="tokens 64 to 80 of 81"),
            "repeated_2": ProbeMap(causal(*size, length, 7 * step + 1), labels),
            "packed": ProbeMap(packed, labels, [0] * 5 + [1] * (length - 5)),
        },
        "scores": {
            "previous_token": (places + 1) / 100,
            "induction": np.float32(step / 100) * (places + 1) / places.size,
            "entropy": 1 + places / 10,
            "antecedent_copies": np.full(size, np.nan, np.float32),
        },
        "chance": {"previous_token": 0.05, "induction": 0.02, "entropy": 1.7, "antecedent_copies": None},
        "scalars": {"copy_gain": step / 10, "sink_rate": None},
    }
    return Snapshot(step, 1000 * step, 0.5 * step, list(layers), list(heads), total, kv, **(fields | changes))


@contextmanager
def chromium():
    """The system's browser.

    Where there is none the test is skipped, and fails where one was promised (CI).
    """
    from playwright.sync_api import sync_playwright

    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None and os.environ.get("HEADLIGHT_REQUIRE_BROWSER"):
        pytest.fail("HEADLIGHT_REQUIRE_BROWSER is set, and there is no Chromium on the PATH")
    if path is None:
        pytest.skip("no Chromium on the PATH: the viewer is not tested (apt-get install chromium)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=" ".join(FLAGS).split())
        yield browser
        browser.close()


@contextmanager
def watched(browser, url, allowed, wait="html[data-ready], #problem:not([hidden])", **more):
    """A page, ready; afterwards: no error, no word in the console, no request but of what begins as
    allowed.
    """
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **more})
    page = context.new_page()
    problems = []
    requests = []
    page.on("pageerror", lambda error: problems.append(f"error: {error}"))
    page.on("console", lambda message: problems.append(f"console: {message.text}"))
    page.on("dialog", lambda dialog: problems.append(f"dialog: {dialog.message}") or dialog.dismiss())
    page.on("request", lambda request: requests.append(request.url))
    page.goto(url)
    page.wait_for_selector(wait)
    yield page
    context.close()
    assert not [url for url in requests if not url.startswith((*allowed, "blob:", "data:"))], "it asked for something"
    assert not problems, problems


def opened(browser, path: Path, allowed=(), **more):
    """The page of a file, without a network."""
    return watched(browser, path.as_uri(), (path.as_uri(), *allowed), offline=True, **more)


SHOWN = """() => { const shown = document.body.cloneNode(true), texts = [];
  const not = "script, noscript, template, code, .tokens, .next, .lens, .map, .tries, .turn, .answer-tokens";
  shown.querySelectorAll(not).forEach((node) => node.remove());
  const walker = document.createTreeWalker(shown);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    texts.push(node.data ?? "", node.title ?? "", node.ariaLabel ?? "");
  }
  return texts; }"""


def english_in(page) -> list[str]:
    """Return a page's English texts, titles and labels of at least three words.

    Terms in brackets are left out.
    """
    texts = [re.sub("（[^）]*）", "", text) for text in page.evaluate(SHOWN)]
    return [text for text in texts if re.search(r"[A-Za-z]{2,},? [a-z]{2,},? [a-z]{2,}", text)]

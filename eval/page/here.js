// The chosen head on the text that is shown: in a sentence, when it began, and how one of its numbers is computed.

// What a key is to a query, in the words of the scores (eval/attention/metrics.py); "" for none of these.
function relation({ labels, starts }, q, k) {
  if (k > starts[q] && k < q && labels[k - 1] === labels[q]) return "what came after the same word last time";
  if (k === q - 1) return "the word just before";
  if (k < q && labels[k] === labels[q]) return "the same word, earlier in the text";
  return k === starts[q] ? "the first word of the text" : "";
}

const strongestKey = (head, q) => Array.from({ length: q + 1 }, (_, k) => k)
  .reduce((best, k) => (head.weight(q, k) > head.weight(q, best) ? k : best), 0);

// At the token that is pointed at, or the last one, and over the whole text.
function hereInWords(pane) {
  const head = headOf(pane.view);
  const { text, length } = head;
  const q = pointedIn(pane) ?? length - 1;
  const k = strongestKey(head, q);
  const what = translated(relation(text, q, k));
  const values = [quoted(text.labels[q]), shownName(pane), k === q ? t("itself") : quoted(text.labels[k]), percent(head.weight(q, k)), what];
  const words = what ? t("From {0}, {1} looks most at {2} ({3}): {4}.", ...values) : t("From {0}, {1} looks most at {2} ({3}).", ...values);
  const sums = {};
  for (let row = 1; row < length; row++) {
    for (let key = 0; key <= row; key++) {
      const kind = relation(text, row, key);
      if (kind) sums[kind] = (sums[kind] ?? 0) + head.weight(row, key) / (length - 1);
    }
  }
  const [most] = Object.entries(sums).sort((a, b) => b[1] - a[1]);
  const all = most ? t("Over the whole text, {0} of its attention is on {1}.", percent(most[1]), translated(most[0])) : "";
  return [words, all];
}

// What forms at which step: {at: a place on the slider, words, go}. go: shows it, and has a button.
function marksOf(pane) {
  const { run, view, number } = pane;
  const last = lastOf(view);
  if (!last) return [];
  const steps = run.shown.map((place) => run.steps[place].step);
  const placeOf = (step) => { // between two places where the step is not shown
    const next = clamp(steps.findLastIndex((other) => other < step) + 1, 1, last);
    return next - clamp((steps[next] - step) / (steps[next] - steps[next - 1]), 0, 1);
  };
  const marks = run.moments.map(({ step, what }) => ({ at: placeOf(step), words: `${t("step {0}", step)}: ${translated(what)}` }));
  if (run.formed) {
    const at = placeOf(run.formed.step);
    const words = t("On random words, {0} forms at step {1}", `L${run.formed.layer} H${run.formed.head}`, run.formed.step);
    const go = () => {
      chooseHead(number, run.layers.indexOf(run.formed.layer), run.heads.indexOf(run.formed.head));
      goTo(number, Math.ceil(at));
    };
    marks.push({ at, words, go });
  }
  if (!isOwn() || !mapsOf(view) || mapsOf(view).text.labels.length > MOST_AT_ALL_STEPS) return marks;
  // from which step on is it as at the last one?
  const since = (values) => values.findLastIndex((value) => value !== values.at(-1)) + 1;
  const next = steps.map((step) => run.own.next(step, state.words, state.off)[0][0]);
  const looks = steps.map((_, at) => {
    const head = headOf({ ...view, at });
    return head.text.labels[strongestKey(head, head.length - 1)];
  });
  const name = headName(run, view.layer, view.head);
  const mark = (values, words) => {
    const at = since(values);
    const when = at ? t("from step {0} on", steps[at]) : t("already at step {0}", steps[at]); // before it nothing is stored
    if (at < last) marks.push({ at, words: words(quoted(values.at(-1)), when), go: () => goTo(number, at) });
  };
  mark(next, (token, when) => t("{0} comes next {1}", token, when));
  mark(looks, (token, when) => t("{0} looks most at {1} {2}", name, token, when));
  return marks.sort((a, b) => a.at - b.at);
}

// The marks below the slider, and a button for each that matters here.
function drawMarks(pane) {
  const marks = marksOf(pane);
  pane.root.querySelectorAll(".mark").forEach((mark) => mark.remove());
  marks.forEach(({ at, words, go }) => {
    const mark = element("span", go ? "mark" : "mark minor", "", { title: words });
    mark.style.left = `calc(8px + (100% - 16px) * ${at / lastOf(pane.view)})`; // the thumb is 16 pixels wide
    pane.find(".slider").append(mark);
  });
  pane.find(".marks").replaceChildren(...marks.filter(({ go }) => go).map(({ words, go }) => button(`▲ ${words}`, go, { class: "formed", title: t("Go to this step") })));
}

// Numbers as a row of coloured cells: blue above 0, orange below.
function strip(values, chosen = -1) {
  const most = Math.max(...values.map(Math.abs), 1e-9);
  return element("span", "strip", "", {}, Array.from(values, (value, i) => {
    const cell = element("i", i === chosen ? "chosen-number" : "", "", { title: number(value) });
    cell.style.backgroundColor = signedShade(value / most, 100);
    return cell;
  }));
}

// How the weight comes about that is pointed at or was clicked, else the largest of the last row: q · k, scale, softmax, · v.
function drawCell(pane) {
  const box = pane.find(".cell");
  const maps = isOwn() && mapsOf(pane.view);
  box.hidden = !maps;
  if (!maps) return;
  const q = pointedIn(pane) ?? maps.text.labels.length - 1;
  const k = state.key ?? strongestKey(headOf(pane.view), q);
  const [from, to] = [q, k].map((place) => quoted(maps.text.labels[place]));
  const { query, key, value, products, score, scaled, size, weights } = cellOf(maps, pane.run, pane.view, q, k);
  const row = (title, words, picture) => [element("dt", "", title), element("dd", "", "", {}, [picture, element("span", "", words)])];
  box.replaceChildren(
    element("h2", "", t("How {0} comes to look at {1}", from, to)),
    element("dl", "", "", {}, [
      ...row("q", t("what {0} looks for, {1} numbers", from, size), strip(query)),
      ...row("k", t("what {0} offers", to), strip(key)),
      ...row("q · k", t("number times number, added up: {0}", score.toFixed(2)), strip(products)),
      ...row("÷ √d", t("{0} / √{1} = {2}", score.toFixed(2), size, scaled.toFixed(2)), ""),
      ...row("softmax", t("e to the {0}, as a share of all {1} tokens up to {2}: {3}", scaled.toFixed(2), maps.text.first + q + 1, from, weights[k].toFixed(3)), strip(weights, k)),
      ...row("· v", t("{0} times what {1} passes on is added to the output of the head at {2}", weights[k].toFixed(3), to, from),
        strip(value.map((part) => weights[k] * part))),
    ]),
  );
}

// The numbers behind one weight. size: d, the numbers of a head.
function cellOf(maps, run, { layer, head }, q, k) {
  const { num_attention_heads: heads, num_key_value_heads: shared, head_dim: size } = run.own.about.config;
  const row = (all, count, place, which) => Array.from(all.subarray((place * count + which) * size, (place * count + which + 1) * size));
  const group = Math.floor((head * shared) / heads);
  const inside = maps.inside[layer];
  const query = row(inside.q, heads, q, head);
  const key = row(inside.k, shared, k, group);
  const products = query.map((part, i) => part * key[i]);
  const score = products.reduce((sum, part) => sum + part, 0);
  const map = new Head(run, maps, layer, head, { hideSink: false });
  const weights = Array.from({ length: q + 1 }, (_, place) => map.weight(q, place));
  return { query, key, value: row(inside.v, shared, k, group), products, score, scaled: score / Math.sqrt(size), size, weights };
}

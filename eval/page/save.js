// Keep what is shown: as a picture, or as data.

const MEASURED = "canvas, .grid, .tokens"; // parts of a picture whose size depends on the window
const TITLE_HIGH = 30;

function saveBlob(blob, name) {
  const to = element("a", "", "", { href: URL.createObjectURL(blob), download: name.replace(/[^\p{L}\p{N}._ -]/gu, "_") });
  to.click();
  setTimeout(() => URL.revokeObjectURL(to.href), 10_000);
}

// What is shown of these boxes: their HTML, with the page's styles, in an SVG. A canvas becomes a background.
function pictureOf(boxes, title) {
  const frames = boxes.map((box) => box.getBoundingClientRect());
  const [left, top] = ["left", "top"].map((side) => Math.min(...frames.map((frame) => frame[side])));
  const [right, bottom] = ["right", "bottom"].map((side) => Math.max(...frames.map((frame) => frame[side])));
  const [width, height] = [right - left, bottom - top + TITLE_HIGH];
  const rules = [...document.styleSheets].flatMap(({ cssRules }) => [...cssRules].map((rule) => rule.cssText));
  const body = element("body", "", "", {}, [element("h2", "", title), ...boxes.map((box, i) => {
    let copy = box.cloneNode(true);
    copy.style.width = `${frames[i].width}px`;
    const nodes = copy.querySelectorAll(MEASURED);
    box.querySelectorAll(MEASURED).forEach((node, at) => {
      Object.assign(nodes[at].style, { width: `${node.offsetWidth}px`, maxHeight: `${node.offsetHeight}px`, flex: "none" }); // here are no vh
      if (node.width) nodes[at].style.background = `url(${node.toDataURL()}) 0 0 / 100% 100%`;
    });
    copy.querySelectorAll(".own-off, .link, .save").forEach((node) => node.remove());
    for (let { parentElement: around } = box; around !== document.body; around = around.parentElement) {
      const shell = around.cloneNode(false); // styles depend on it
      shell.append(copy);
      copy = shell;
    }
    copy.style.cssText = `position: absolute; left: ${frames[i].left - left}px; top: ${frames[i].top - top + TITLE_HIGH}px; width: ${width}px`;
    return copy;
  })]);
  const { lang, dataset: { theme } } = document.documentElement;
  const size = { width: width + 32, height: height + 32, viewBox: `-16 -16 ${width + 32} ${height + 32}` };
  const svg = drawn("svg", { ...size, class: "saved", lang, "data-theme": theme }, "", [
    drawn("style", {}, rules.join("\n")), drawn("foreignObject", { width, height }, "", [body]),
  ]);
  return new XMLSerializer().serializeToString(svg);
}

async function savePng(svg, name) {
  const image = new Image();
  image.src = `data:image/svg+xml,${encodeURIComponent(svg)}`;
  await image.decode();
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [2 * image.width, 2 * image.height];
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  canvas.toBlob((blob) => saveBlob(blob, name), "image/png");
}

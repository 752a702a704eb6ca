// English, or Chinese where the browser or the reader asks for it. What is written in this page goes through t(), what a
// run says in English through translated(); zh.json has both. {0}, {1} … stand for values.

const storage = (() => {
  try {
    return location.protocol === "about:" ? null : localStorage; // within a notebook the browser's language counts
  } catch { // in a sandbox
    return null;
  }
})();
const isChinese = (storage?.getItem("headlight-language") ?? navigator.language).startsWith("zh");

function t(words, ...values) {
  return (isChinese ? ZH[words] ?? words : words).replace(/\{(\d)\}/g, (_, i) => values[i]);
}

const patterns = isChinese ? Object.keys(ZH_OF_RUNS).map((key) => [key, new RegExp(`^${key.replace(/[.*+?^$()|[\]\\]/g, "\\$&").replace(/\{\d\}/g, "(.+?)")}$`)]) : [];

// A line of the table that fits as a whole, with what stands at its {0}, {1} … translated in turn. Names stay.
function translated(words) {
  const [key, pattern] = patterns.find(([, one]) => one.test(words)) ?? [];
  if (!key) return words ?? "";
  const values = words.match(pattern).slice(1).map(translated);
  return ZH_OF_RUNS[key].replace(/\{(\d)\}/g, (_, i) => values[i]);
}

// The words, titles and labels of page.html.
function translatePage() {
  byId("language").textContent = isChinese ? "English" : "中文";
  if (!isChinese) return;
  document.documentElement.lang = "zh-CN";
  document.title = translated(document.title);
  document.querySelectorAll("header, dialog, template").forEach((part) => {
    const walker = document.createTreeWalker(part.content ?? part);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      if (node.data?.trim()) node.data = t(node.data.replace(/\s+/g, " ").trim());
      ["title", "aria-label"].filter((name) => node.hasAttribute?.(name))
        .forEach((name) => node.setAttribute(name, t(node.getAttribute(name).replace(/\s+/g, " "))));
    }
  });
}

// The page is loaded again, and shows what its address says.
function changeLanguage() {
  storage.setItem("headlight-language", isChinese ? "en" : "zh");
  location.reload();
}

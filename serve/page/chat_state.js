// What the chat's address says: the model, what was said, how it is answered, and which heads are changed.

export const DEFAULTS = { t: "0", p: "1", seed: "0", n: "128" };
const LONGEST = 6000; // characters of a conversation in an address

const whole = (text) => (/^\d{1,15}$/.test(text) ? Number(text) : null);

// {layer, head, factor} of each changed head: "0.1*0,2.3*0.5"
export function readHeads(text) {
  return text.split(",").map((one) => /^(\d{1,4})\.(\d{1,4})\*(-?\d+(?:\.\d+)?)$/.exec(one)).filter(Boolean)
    .map(([, layer, head, factor]) => ({ layer: Number(layer), head: Number(head), factor: Number(factor) }))
    .filter(({ factor }) => Math.abs(factor) <= 10);
}

export const writeHeads = (heads) => heads.map(({ layer, head, factor }) => `${layer}.${head}*${factor}`).join(",");

function readMessages(text) {
  try {
    const found = JSON.parse(text);
    const isRight = ({ role, content }) => ["system", "user", "assistant"].includes(role) && typeof content === "string";
    return Array.isArray(found) && found.every(isRight) ? found : [];
  } catch {
    return [];
  }
}

export function read(address) {
  const heads = readHeads(address.get("off"));
  const [chosen] = readHeads(`${address.get("head")}*1`);
  return {
    step: whole(address.get("step")),
    adapter: address.get("adapter") || null,
    messages: readMessages(address.get("m")),
    question: whole(address.get("q")),
    forced: address.get("a").split(".").map(whole).filter((token) => token !== null),
    heads: heads.filter((one, i) => heads.findIndex((other) => isSame(one, other)) === i),
    chosen: chosen ? { layer: chosen.layer, head: chosen.head } : null,
    settings: Object.fromEntries(Object.entries(DEFAULTS).map(([name, value]) => [name, address.get(name, value)])),
  };
}

export function write(address, state) {
  const said = JSON.stringify(state.messages);
  const forced = state.forced.join(".");
  const settings = Object.entries(state.settings).map(([name, value]) => [name, value === DEFAULTS[name] ? "" : value]);
  address.set({
    step: state.step, adapter: state.adapter, q: state.question,
    m: state.question === null && state.messages.length && said.length <= LONGEST ? said : "",
    a: forced.length <= LONGEST ? forced : "",
    off: writeHeads(state.heads),
    head: state.chosen ? `${state.chosen.layer}.${state.chosen.head}` : "",
    ...Object.fromEntries(settings),
  });
}

export const isSame = (one, other) => one?.layer === other?.layer && one?.head === other?.head;
export const factorOf = (heads, place) => heads.find((one) => isSame(one, place))?.factor ?? 1;

// The changed heads, with one more changed; a factor of 1 changes nothing.
export function withFactor(heads, { layer, head }, factor) {
  const others = heads.filter((one) => !isSame(one, { layer, head }));
  const all = factor === 1 ? others : [...others, { layer, head, factor }];
  return all.sort((a, b) => a.layer - b.layer || a.head - b.head);
}

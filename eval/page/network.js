// A small model that computes in the page: its tokenizer, and the forward pass of model/transformer.py in plain loops.
// T tokens, C numbers of a token, H query heads of D numbers, V ids.

// Byte-level BPE: text -> words -> letters that stand for bytes -> the pairs that were merged first in training.
class Tokenizer {
  constructor({ tokens, merges, first, unknown }) {
    Object.assign(this, { tokens, first, unknown }); // first: ids that begin every text
    this.ids = new Map(tokens.map((token, id) => [token, id]));
    this.ranks = merges && new Map(merges.map((pair, rank) => [pair, rank])); // "Ġ s" -> how early; none: characters
    // GPT-2's table: printable bytes stand for themselves, the others come after 255
    const printable = (byte) => (byte > 32 && byte < 127) || (byte > 160 && byte !== 173);
    let others = 0;
    this.letters = Array.from({ length: 256 }, (_, byte) => String.fromCharCode(printable(byte) ? byte : 256 + others++));
    this.bytes = new Map(this.letters.map((letter, byte) => [letter, byte]));
  }

  encode(text) {
    if (!this.ranks) return [...this.first, ...Array.from(text, (letter) => this.ids.get(letter) ?? this.unknown)];
    const words = text.split(/(\p{N})/u).flatMap((part) => part.match(WORDS) ?? []); // a digit is a word of its own
    return [...this.first, ...words.flatMap((word) => this.encodeWord(word))];
  }

  encodeWord(word) {
    let parts = Array.from(new TextEncoder().encode(word), (byte) => this.letters[byte]);
    for (;;) {
      const ranks = parts.slice(1).map((part, i) => this.ranks.get(`${parts[i]} ${part}`) ?? Infinity);
      const best = Math.min(...ranks);
      if (best === Infinity) return parts.map((part) => this.ids.get(part));
      const at = ranks.indexOf(best);
      parts = [...parts.slice(0, at), parts[at] + parts[at + 1], ...parts.slice(at + 2)];
    }
  }

  // <|bos|> and others, which stand for no text.
  isSpecial(id) {
    return /^<\|.+\|>$/.test(this.tokens[id]);
  }

  decode(ids) {
    const token = ids.map((id) => this.tokens[id]).join("");
    if (!this.ranks) return token;
    return new TextDecoder().decode(Uint8Array.from(token, (letter) => this.bytes.get(letter) ?? 63));
  }

  // What is written for a token: spaces and line ends are seen.
  label(id) {
    if (this.isSpecial(id)) return this.tokens[id].replaceAll("|", "");
    return this.decode([id]).replaceAll(" ", "␣").replaceAll("\n", "⏎").replaceAll("\t", "⇥");
  }
}

// The pattern in tokenizer.json.
const WORDS = /'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}{1,512}| ?\p{N}{1,512}| ?[^\s\p{L}\p{N}]{1,512}|\s{1,512}(?!\S)|\s{1,512}/gu;

class Network {
  // tensors: the name in the checkpoint -> { shape, data: Float32Array }
  constructor(config, tensors) {
    Object.assign(this, { config, tensors });
  }

  // ids -> { weights: of every layer and head (T x T), one after the other; hidden: after the embedding and each layer,
  // (T, C) each; logits: of the last token; inside: of each layer { q, k, v, out }, rows of all tokens, where out are the
  // outputs of the heads, side by side }. off: "layer.head" of heads whose output is set to zero.
  forward(ids, off = new Set()) {
    const { num_hidden_layers: layers, head_dim: D, hidden_size: C } = this.config;
    const { num_attention_heads: heads, num_key_value_heads: shared } = this.config;
    const T = ids.length;
    const embedding = this.tensors["model.embed_tokens.weight"].data;
    const x = new Float32Array(T * C);
    ids.forEach((id, t) => x.set(embedding.subarray(id * C, (id + 1) * C), t * C));
    const weights = new Float32Array(layers * heads * T * T);
    const hidden = [x.slice()];
    const inside = [];
    for (let layer = 0; layer < layers; layer++) {
      const name = (part) => `model.layers.${layer}.${part}.weight`;
      const normed = this.norm(x, name("input_layernorm"), C);
      const q = this.turned(this.linear(normed, name("self_attn.q_proj")), name("self_attn.q_norm"), T);
      const k = this.turned(this.linear(normed, name("self_attn.k_proj")), name("self_attn.k_norm"), T);
      const v = this.linear(normed, name("self_attn.v_proj"));
      const out = new Float32Array(T * heads * D);
      for (let head = 0; head < heads; head++) {
        const map = weights.subarray((layer * heads + head) * T * T, (layer * heads + head + 1) * T * T);
        const group = Math.floor((head * shared) / heads) * D; // neighbours share keys and values
        const [keys, values] = [k, v].map((array) => [array, group, shared * D]);
        const [queries, outputs] = [q, out].map((array) => [array, head * D, heads * D]);
        const isOff = off.has(`${layer}.${head}`);
        attend(queries, keys, values, outputs, map, { tokens: T, size: D, scale: 1 / Math.sqrt(D), isMasked: true, isOff });
      }
      inside.push({ q, k, v, out });
      add(x, this.linear(out, name("self_attn.o_proj")));
      const inner = this.norm(x, name("post_attention_layernorm"), C);
      const gate = this.linear(inner, name("mlp.gate_proj"));
      const up = this.linear(inner, name("mlp.up_proj"));
      for (let i = 0; i < gate.length; i++) up[i] *= gate[i] / (1 + Math.exp(-gate[i])); // SwiGLU
      add(x, this.linear(up, name("mlp.down_proj")));
      hidden.push(x.slice());
    }
    return { weights, hidden, inside, logits: this.logits(x.subarray((T - 1) * C)) };
  }

  // Scores of what comes next, from one token's numbers: also those between two layers (the logit lens).
  logits(x) {
    return this.linear(this.norm(x, "model.norm.weight", this.config.hidden_size), this.unembedding);
  }

  // What each head adds to the logit of a token, directly (direct_logit_attribution in eval/attention/inside.py): one number
  // for each layer and head. x: the last layer's output at one token; outs: of each layer, the heads' outputs at that token.
  pushes(x, outs, id) {
    const { hidden_size: C, num_attention_heads: H, head_dim: D, rms_norm_eps: epsilon } = this.config;
    const gain = this.tensors["model.norm.weight"].data;
    const row = this.tensors[this.unembedding].data.subarray(id * C, (id + 1) * C);
    const factor = 1 / Math.sqrt(dot(x, 0, x, 0, C) / C + epsilon); // the final norm divides a part as it does the whole
    return outs.map((out, layer) => {
      const projection = this.tensors[`model.layers.${layer}.self_attn.o_proj.weight`].data; // (C, H * D)
      return Array.from({ length: H }, (_, head) => {
        let push = 0;
        for (let c = 0; c < C; c++) push += dot(projection, (c * H + head) * D, out, head * D, D) * gain[c] * row[c];
        return push * factor;
      });
    });
  }

  get unembedding() {
    return this.tensors["lm_head.weight"] ? "lm_head.weight" : "model.embed_tokens.weight";
  }

  // x (rows, in) W^T -> (rows, out)
  linear(x, name) {
    const { shape: [out, size], data } = this.tensors[name];
    const rows = x.length / size;
    const y = new Float32Array(rows * out);
    multiply(x, data, y, rows, out, size);
    return y;
  }

  // RMSNorm of every `size` numbers
  norm(x, name, size) {
    const gain = this.tensors[name].data;
    const y = new Float32Array(x.length);
    normalise(x, y, size, this.config.rms_norm_eps);
    return y.map((value, i) => value * gain[i % size]);
  }

  // QK-norm, where the model has it, and RoPE: the pair (i, i + D/2) turns by an angle that grows with the position
  turned(x, name, T) {
    const { head_dim: D, rope_theta: theta } = this.config;
    const y = this.tensors[name] ? this.norm(x, name, D) : x;
    for (let start = 0; start < y.length; start += D) {
      const position = Math.floor(start / (y.length / T));
      for (let i = 0; i < D / 2; i++) {
        const angle = Math.fround(position * theta ** (-2 * i / D));
        const [a, b] = [y[start + i], y[start + i + D / 2]];
        y[start + i] = a * Math.cos(angle) - b * Math.sin(angle);
        y[start + i + D / 2] = b * Math.cos(angle) + a * Math.sin(angle);
      }
    }
    return y;
  }
}

function dot(a, i, b, j, size) {
  let sum = 0;
  for (let n = 0; n < size; n++) sum += a[i + n] * b[j + n];
  return sum;
}

function add(x, y) {
  for (let i = 0; i < x.length; i++) x[i] += y[i];
}

// The weights of one step: every matrix as whole numbers with one for each row that scales it, vectors as they are.
function unpackTensors(raw, shapes) {
  const tensors = {};
  let at = 0;
  const floats = (count) => {
    at += 4 * count;
    return new Float32Array(raw.slice(at - 4 * count, at).buffer); // a copy: there may be an odd number of bytes before
  };
  shapes.forEach(([name, shape]) => {
    const [rows, size] = shape;
    let data = size ? new Float32Array(rows * size) : floats(rows);
    if (size) {
      const scales = floats(rows);
      const codes = new Int8Array(raw.buffer, raw.byteOffset + at, rows * size);
      data = data.map((_, i) => codes[i] * scales[Math.floor(i / size)]);
      at += rows * size;
    }
    tensors[name] = { shape, data };
  });
  return tensors;
}

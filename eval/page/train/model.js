// A transformer of attention layers, forward and backward by hand, in Float32Array.
// A sum is collected in a double and stored as a float.
// Shapes: N = rows x tokens, T tokens, C = WIDTH, H heads of D = C / H numbers, G key/value heads.

const WIDTH = 64;
const VOCABULARY = 64;
const EPSILON = 1e-6;

// (n, m) -> (m, n)
function transposed(a, n, m) {
  const out = new Float32Array(n * m);
  for (let i = 0; i < n; i++) {
    for (let j = 0; j < m; j++) out[j * n + i] = a[i * m + j];
  }
  return out;
}

// Adds to dx what a gradient of the normalised rows is for x: what lies along the row itself
// drops out, because its length does not count.
function normaliseBack(dout, out, inverse, dx) {
  for (let i = 0, at = 0; i < inverse.length; i++, at += WIDTH) {
    let along = 0;
    for (let c = 0; c < WIDTH; c++) along += dout[at + c] * out[at + c];
    along /= WIDTH;
    for (let c = 0; c < WIDTH; c++) dx[at + c] += (dout[at + c] - out[at + c] * along) * inverse[i];
  }
}

// All parameters in one array, with a view for each matrix. Weights begin random and uniform,
// outputs of attention zero.
class Parameters {
  constructor({ layers, heads, groups, seed }) {
    const perHead = WIDTH / heads;
    const rows = WIDTH + 2 * groups * perHead; // queries, keys, values
    const count = WIDTH * (2 * VOCABULARY + layers * (rows + WIDTH));
    this.values = new Float32Array(count);
    this.gradients = new Float32Array(count);
    let at = 0;
    const view = (size) => {
      at += size * WIDTH;
      return [this.values.subarray(at - size * WIDTH, at), this.gradients.subarray(at - size * WIDTH, at)];
    };
    const random = stream(seed, 0);
    const fill = (values, deviation) => {
      const reach = Math.sqrt(3) * deviation;
      for (let i = 0; i < values.length; i++) values[i] = (2 * random() - 1) * reach;
    };
    this.embedding = view(VOCABULARY);
    fill(this.embedding[0], 1);
    // One direction is common to all tokens: with it a head can look at a place, whatever is there.
    const common = new Float32Array(WIDTH);
    fill(common, 1);
    for (let i = 0; i < VOCABULARY * WIDTH; i++) this.embedding[0][i] += common[i % WIDTH];
    this.layers = [];
    for (let l = 0; l < layers; l++) {
      const layer = { qkv: view(rows), output: view(WIDTH) };
      fill(layer.qkv[0], 1 / Math.sqrt(WIDTH));
      this.layers.push(layer);
    }
    this.head = view(VOCABULARY);
    fill(this.head[0], 0.1 / Math.sqrt(WIDTH));
  }
}

// The angles of rotary positions (RoPE): cosine and sine for each token and pair of numbers.
function rotations(tokens, pairs) {
  const cosines = new Float32Array(tokens * pairs);
  const sines = new Float32Array(tokens * pairs);
  for (let i = 0; i < pairs; i++) {
    const [cos, sin] = cosAndSin(exp((-i / pairs) * log(10000)));
    let [x, y] = [1, 0];
    for (let t = 0; t < tokens; t++) {
      cosines[t * pairs + i] = x;
      sines[t * pairs + i] = y;
      [x, y] = [x * cos - y * sin, x * sin + y * cos]; // one angle further
    }
  }
  return { cosines, sines };
}

// One batch's way through the model and back. It keeps what the way back needs.
//   parameters  of class Parameters
//   shape       layers, heads, groups; rows and tokens of the batch
//   switches    off: a 1 for each head (layer by layer) that is off; scaled: divide by sqrt(D);
//               masked: a token sees no later one
class Pass {
  constructor(parameters, shape, switches) {
    Object.assign(this, shape, { parameters, switches });
    this.perHead = WIDTH / this.heads; // D
    this.total = this.rows * this.tokens; // N
    this.qkvWidth = WIDTH + 2 * this.groups * this.perHead;
    this.headPlaces = this.places();
    this.rotations = rotations(this.tokens, this.perHead / 2);
    const floats = (size) => new Float32Array(size);
    this.residual = floats(this.total * WIDTH);
    this.change = floats(this.total * WIDTH);
    this.last = floats(this.total * WIDTH);
    this.probabilities = floats(this.total * VOCABULARY);
    this.layers = parameters.layers.map(() => ({
      normal: floats(this.total * WIDTH),
      qkv: floats(this.total * this.qkvWidth),
      attention: floats(this.rows * this.heads * this.tokens * this.tokens),
      mixed: floats(this.total * WIDTH),
    }));
  }

  // ids, targets: N tokens. Returns the loss of each token, in nats.
  forward(ids, targets) {
    const { parameters, total, residual, change } = this;
    const [embedding] = parameters.embedding;
    for (let i = 0; i < total; i++) {
      residual.set(embedding.subarray(ids[i] * WIDTH, (ids[i] + 1) * WIDTH), i * WIDTH);
    }
    this.layers.forEach((layer, l) => {
      layer.inverse = normalise(residual, layer.normal, WIDTH, EPSILON);
      multiply(layer.normal, parameters.layers[l].qkv[0], layer.qkv, total, this.qkvWidth, WIDTH);
      this.rotate(layer.qkv, 1);
      this.attend(layer, l);
      multiply(layer.mixed, parameters.layers[l].output[0], change, total, WIDTH, WIDTH);
      for (let i = 0; i < residual.length; i++) residual[i] += change[i]; // the residual stream
    });
    this.inverse = normalise(residual, this.last, WIDTH, EPSILON);
    multiply(this.last, parameters.head[0], this.probabilities, total, VOCABULARY, WIDTH);
    const losses = new Float64Array(total);
    for (let i = 0; i < total; i++) {
      softmax(this.probabilities, i * VOCABULARY, VOCABULARY);
      losses[i] = -log(Math.max(this.probabilities[i * VOCABULARY + targets[i]], 1e-30));
    }
    return losses;
  }

  // Turns queries and keys by their positions: direction 1, or -1 for the way back.
  rotate(qkv, direction) {
    const half = this.perHead / 2;
    const { cosines, sines } = this.rotations;
    for (let i = 0; i < this.total; i++) {
      const angles = (i % this.tokens) * half;
      for (let h = 0; h < this.heads + this.groups; h++) {
        const at = i * this.qkvWidth + h * this.perHead;
        for (let d = 0; d < half; d++) {
          const cos = cosines[angles + d];
          const sin = direction * sines[angles + d];
          const x = qkv[at + d];
          const y = qkv[at + d + half];
          qkv[at + d] = x * cos - y * sin;
          qkv[at + d + half] = x * sin + y * cos;
        }
      }
    }
  }

  // For each row of the batch and head: the places of its first query, key, value, attention weight
  // and output. Heads of a group share keys and values.
  places() {
    const { rows, heads, groups, perHead, tokens, qkvWidth } = this;
    return Array.from({ length: rows * heads }, (_, i) => {
      const head = i % heads;
      const group = Math.floor(head / (heads / groups));
      const row = Math.floor(i / heads) * tokens; // its first token
      const query = row * qkvWidth + head * perHead;
      const key = row * qkvWidth + WIDTH + group * perHead;
      const value = key + groups * perHead;
      return { head, query, key, value, weight: i * tokens ** 2, out: row * WIDTH + head * perHead };
    });
  }

  // mixed = softmax(q · k / sqrt(D)) v, head by head.
  attend({ qkv, attention, mixed }, l) {
    const { tokens, perHead, qkvWidth, switches } = this;
    mixed.fill(0);
    for (const { head, query, key, value, weight, out } of this.headPlaces) {
      const [q, k, v] = [query, key, value].map((place) => [qkv, place, qkvWidth]);
      attend(q, k, v, [mixed, out, WIDTH], attention.subarray(weight, weight + tokens ** 2), {
        tokens,
        size: perHead,
        scale: switches.scaled ? 1 / Math.sqrt(perHead) : 1,
        isMasked: switches.masked,
        isOff: switches.off[l * this.heads + head] === 1,
      });
    }
  }

  // Fills parameters.gradients with the gradients of the mean loss of the last forward().
  backward(ids, targets) {
    const { parameters, total, probabilities } = this;
    const [, dEmbedding] = parameters.embedding;
    for (let i = 0; i < total; i++) probabilities[i * VOCABULARY + targets[i]] -= 1;
    for (let i = 0; i < probabilities.length; i++) probabilities[i] /= total;
    const dLast = new Float32Array(total * WIDTH);
    multiplyBack(probabilities, this.last, parameters.head, dLast, total, VOCABULARY);
    const dResidual = new Float32Array(total * WIDTH);
    normaliseBack(dLast, this.last, this.inverse, dResidual);
    for (let l = this.layers.length - 1; l >= 0; l--) {
      const layer = this.layers[l];
      const dMixed = new Float32Array(total * WIDTH);
      multiplyBack(dResidual, layer.mixed, parameters.layers[l].output, dMixed, total, WIDTH);
      const dQkv = this.attendBack(layer, l, dMixed);
      this.rotate(dQkv, -1);
      const dNormal = new Float32Array(total * WIDTH);
      multiplyBack(dQkv, layer.normal, parameters.layers[l].qkv, dNormal, total, this.qkvWidth);
      normaliseBack(dNormal, layer.normal, layer.inverse, dResidual);
    }
    dEmbedding.fill(0);
    for (let i = 0; i < total; i++) {
      for (let c = 0; c < WIDTH; c++) dEmbedding[ids[i] * WIDTH + c] += dResidual[i * WIDTH + c];
    }
  }

  // The gradient of queries, keys and values, from that of the mixed values.
  attendBack({ qkv, attention }, l, dMixed) {
    const { tokens, perHead, qkvWidth, switches } = this;
    const scale = switches.scaled ? 1 / Math.sqrt(perHead) : 1;
    const dQkv = new Float32Array(qkv.length);
    const dWeights = new Float64Array(tokens);
    for (const { head, query, key, value, weight, out } of this.headPlaces) {
      if (switches.off[l * this.heads + head] === 1) continue;
      for (let t = 0; t < tokens; t++) {
        const seen = switches.masked ? t + 1 : tokens;
        const w = weight + t * tokens;
        const q = query + t * qkvWidth;
        const o = out + t * WIDTH;
        let mean = 0; // the softmax's weights add up to 1, so their mean gradient drops out
        for (let s = 0; s < seen; s++) {
          const v = value + s * qkvWidth;
          const share = attention[w + s];
          let sum = 0;
          for (let d = 0; d < perHead; d++) {
            sum += dMixed[o + d] * qkv[v + d];
            dQkv[v + d] += share * dMixed[o + d];
          }
          dWeights[s] = sum;
          mean += sum * share;
        }
        for (let s = 0; s < seen; s++) {
          const k = key + s * qkvWidth;
          const dScore = attention[w + s] * (dWeights[s] - mean) * scale;
          for (let d = 0; d < perHead; d++) {
            dQkv[q + d] += dScore * qkv[k + d];
            dQkv[k + d] += dScore * qkv[q + d];
          }
        }
      }
    }
    return dQkv;
  }
}

// For y = x Wᵀ: fills dx (n, c) = dy W and the gradient of W (m, c) = dyᵀ x.
function multiplyBack(dy, x, [weights, gradients], dx, n, m) {
  multiply(dy, transposed(weights, m, WIDTH), dx, n, WIDTH, m);
  multiply(transposed(dy, n, m), transposed(x, n, WIDTH), gradients, m, WIDTH, n);
}

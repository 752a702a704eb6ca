// The arithmetic of both models: the one that trains in a page, and the one that a page reads with.
// It gives the same numbers in every browser, bit for bit: JavaScript's + - * / and Math.sqrt are
// exact, but Math.exp, log, cos and sin may differ in the last bits from one browser to another.
// So these four are written here, with + - * / alone.

const LN2 = 0.6931471805599453;

// 2 ** n for n from -1074 to 1023: repeated doubling and halving are exact.
const POWERS = new Float64Array(2098);
POWERS[1074] = 1;
for (let n = 1; n < 1024; n++) POWERS[1074 + n] = 2 * POWERS[1073 + n];
for (let n = 1; n <= 1074; n++) POWERS[1074 - n] = POWERS[1075 - n] / 2;

const INVERSES = Array.from({ length: 12 }, (_, k) => 1 / k);

// To 13 digits.
function exp(x) {
  if (x < -700) return 0;
  const n = Math.round(x / LN2);
  const r = x - n * LN2; // at most LN2 / 2, where the series converges fast
  let sum = 1;
  for (let k = 11; k > 0; k--) sum = 1 + sum * r * INVERSES[k];
  return sum * POWERS[1074 + n];
}

function log(x) {
  // x = m 2 ** n with m near 1, and log m = 2 (s + s³/3 + s⁵/5 + …) where s = (m - 1) / (m + 1)
  let n = 0;
  while (x > 1.5) { x /= 2; n++; }
  while (x < 0.75) { x *= 2; n--; }
  const s = (x - 1) / (x + 1);
  let sum = 0;
  for (let k = 27; k > 0; k -= 2) sum = sum * s * s + 1 / k;
  return n * LN2 + 2 * s * sum;
}

// The first terms of the two series; |x| is at most 1 here.
function cosAndSin(x) {
  let cos = 1;
  let sin = 1;
  for (let k = 20; k > 0; k -= 2) {
    cos = 1 - (cos * x * x) / (k * (k - 1));
    sin = 1 - (sin * x * x) / (k * (k + 1));
  }
  return [cos, x * sin];
}

// Random numbers from 0 to 1 (without 1) by mulberry32, which notebooks/page_twin.py has, too. Each
// seed and use has a stream of its own: weights, probe, and the rows of each step.
function stream(seed, use) {
  let state = Math.imul(seed + 1, 0x9e3779b1) ^ Math.imul(use + 1, 0x85ebca6b);
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let bits = Math.imul(state ^ (state >>> 15), 1 | state);
    bits = (bits + Math.imul(bits ^ (bits >>> 7), 61 | bits)) ^ bits;
    return ((bits ^ (bits >>> 14)) >>> 0) / 4294967296;
  };
}

// out (n, m) = a (n, c) · b (m, c)ᵀ. Every matrix product of the models is this one, after a
// transposition where need be. Eight sums share their loads: two rows of a, four of b. Where the
// last rows are fewer, one of them is computed again.
function multiply(a, b, out, n, m, c) {
  for (let i = 0; i < n; i += 2) {
    const i1 = Math.min(1, n - 1 - i);
    const nextA = i1 * c;
    for (let j = 0; j < m; j += 4) {
      const j1 = Math.min(1, m - 1 - j);
      const j2 = Math.min(2, m - 1 - j);
      const j3 = Math.min(3, m - 1 - j);
      let s00 = 0, s01 = 0, s02 = 0, s03 = 0;
      let s10 = 0, s11 = 0, s12 = 0, s13 = 0;
      let atA = i * c;
      let atB = j * c;
      for (const end = atA + c; atA < end; atA++, atB++) {
        const a0 = a[atA];
        const a1 = a[atA + nextA];
        const b0 = b[atB];
        const b1 = b[atB + j1 * c];
        const b2 = b[atB + j2 * c];
        const b3 = b[atB + j3 * c];
        s00 += a0 * b0; s01 += a0 * b1; s02 += a0 * b2; s03 += a0 * b3;
        s10 += a1 * b0; s11 += a1 * b1; s12 += a1 * b2; s13 += a1 * b3;
      }
      const at = i * m + j;
      const below = at + i1 * m;
      out[at] = s00; out[at + j1] = s01; out[at + j2] = s02; out[at + j3] = s03;
      out[below] = s10; out[below + j1] = s11; out[below + j2] = s12; out[below + j3] = s13;
    }
  }
}

// Each row of `size` numbers divided by the root of its mean square. Returns the factors, for the
// way back.
function normalise(x, out, size, epsilon) {
  const factors = new Float64Array(x.length / size);
  for (let i = 0, at = 0; i < factors.length; i++, at += size) {
    let squares = 0;
    for (let c = 0; c < size; c++) squares += x[at + c] * x[at + c];
    factors[i] = 1 / Math.sqrt(squares / size + epsilon);
    for (let c = 0; c < size; c++) out[at + c] = x[at + c] * factors[i];
  }
  return factors;
}

// `size` numbers from `start` on become shares that add up to 1.
function softmax(numbers, start = 0, size = numbers.length) {
  const end = start + size;
  let largest = -Infinity;
  for (let i = start; i < end; i++) {
    if (numbers[i] > largest) largest = numbers[i];
  }
  let sum = 0;
  for (let i = start; i < end; i++) {
    numbers[i] = exp(numbers[i] - largest);
    sum += numbers[i];
  }
  for (let i = start; i < end; i++) numbers[i] /= sum;
  return numbers;
}

// One head: weights = softmax(scale q · k), and out += weights v. Each of q, k, v and out is
// [array, place, step]: where its first token begins, and how far it is to the next one.
//   weights    (tokens, tokens), a row for each query
//   isMasked   a token sees no later one
//   isOff      the head still looks, but writes nothing
function attend([q, atQ, stepQ], [k, atK, stepK], [v, atV, stepV], [out, atOut, stepOut], weights, how) {
  const { tokens, size, scale, isMasked, isOff } = how;
  for (let t = 0; t < tokens; t++) {
    const seen = isMasked ? t + 1 : tokens;
    const w = t * tokens;
    const query = atQ + t * stepQ;
    const o = atOut + t * stepOut;
    for (let s = 0; s < seen; s++) {
      const key = atK + s * stepK;
      let sum = 0;
      for (let d = 0; d < size; d++) sum += q[query + d] * k[key + d];
      weights[w + s] = sum * scale;
    }
    softmax(weights, w, seen);
    weights.fill(0, w + seen, w + tokens);
    if (isOff) continue;
    for (let s = 0; s < seen; s++) {
      const value = atV + s * stepV;
      const share = weights[w + s];
      for (let d = 0; d < size; d++) out[o + d] += share * v[value + d];
    }
  }
}

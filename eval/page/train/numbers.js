// Numbers that are the same in every browser, bit for bit.
// JavaScript's + - * / and Math.sqrt are exact, but Math.exp, log, cos and sin may differ in the
// last bits from one browser to another. So these four are written here, with + - * / alone.

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

// mulberry32: random numbers from 0 to 1 (without 1) from a 32-bit state. notebooks/page_twin.py
// has it too.
function generator(state) {
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let bits = Math.imul(state ^ (state >>> 15), 1 | state);
    bits = (bits + Math.imul(bits ^ (bits >>> 7), 61 | bits)) ^ bits;
    return ((bits ^ (bits >>> 14)) >>> 0) / 4294967296;
  };
}

// One stream of random numbers for each seed and use: weights, probe, and the rows of each step.
const stream = (seed, use) => generator(Math.imul(seed + 1, 0x9e3779b1) ^ Math.imul(use + 1, 0x85ebca6b));

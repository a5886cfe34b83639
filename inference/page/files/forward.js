// The forward pass of vit/model.py in plain JavaScript, with what can be changed in it, and how its numbers are unpacked.
// T tokens, D width, H heads, K = D / H; a matrix is a Float32Array, row after row.
"use strict";

// The arrays that inference/page/document.py has packed: {name: {shape, values}}.
async function unpack({described, content}) {
  const text = atob(content), bytes = new Uint8Array(text.length), arrays = {};
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const apart = new Uint8Array(await new Response(stream).arrayBuffer());
  let start = 0;
  for (const {name, type, shape} of described) {
    const kind = {uint8: Uint8Array, int16: Int16Array, float32: Float32Array}[type], size = kind.BYTES_PER_ELEMENT;
    const count = shape.reduce((product, side) => product * side, 1), joined = new Uint8Array(count * size);
    for (let place = 0; place < size; place++, start += count)
      for (let i = 0; i < count; i++) joined[i * size + place] = apart[start + i];
    arrays[name] = {shape, values: new kind(joined.buffer)};
  }
  return arrays;
}

// Weights are whole numbers of the step of their row.
function inSteps(arrays) {
  const tensors = {};
  for (const [name, {shape, values}] of Object.entries(arrays)) {
    const steps = arrays[`${name} steps`]?.values, width = shape.at(-1);
    if (!steps) continue;
    const numbers = tensors[name] = new Float32Array(values.length);
    for (let row = 0, i = 0; row < steps.length; row++)
      for (const end = i + width; i < end; i++) numbers[i] = values[i] * steps[row];
  }
  return tensors;
}

// x W^T + b: (T, in) -> (T, out), for W (out, in).
function linear(x, width, weight, bias) {
  const tokens = x.length / width, outputs = weight.length / width, result = new Float32Array(tokens * outputs);
  for (let t = 0; t < tokens; t++)
    for (let j = 0; j < outputs; j++) {
      let sum = bias ? bias[j] : 0;
      for (let i = 0, a = t * width, b = j * width; i < width; i++) sum += x[a + i] * weight[b + i];
      result[t * outputs + j] = sum;
    }
  return result;
}

// Each token over its own D numbers.
function layerNorm(x, width, weight, bias, eps) {
  const result = new Float32Array(x.length);
  for (let start = 0; start < x.length; start += width) {
    let mean = 0, variance = 0;
    for (let i = 0; i < width; i++) mean += x[start + i] / width;
    for (let i = 0; i < width; i++) variance += (x[start + i] - mean) ** 2 / width;
    const scale = 1 / Math.sqrt(variance + eps);
    for (let i = 0; i < width; i++) result[start + i] = (x[start + i] - mean) * scale * weight[i] + bias[i];
  }
  return result;
}

// x Phi(x), with the normal distribution function to 1e-7 (Abramowitz and Stegun 1964, 7.1.26).
function gelu(x) {
  const z = Math.abs(x) / Math.SQRT2, t = 1 / (1 + 0.3275911 * z);
  const tail = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))));
  const upper = 1 - 0.5 * tail * Math.exp(-z * z);
  return x * (x < 0 ? 1 - upper : upper);
}

// Eq. 5-8 of one block. `off` are the numbers of heads that hand on zeros.
function attend(x, width, heads, tensor, off) {
  const tokens = x.length / width, K = width / heads, mixed = new Float32Array(x.length);
  const qkv = linear(x, width, tensor("attention.qkv.weight"), tensor("attention.qkv.bias"));
  const scores = new Float64Array(tokens);
  for (let head = 0; head < heads; head++) {
    if (off.has(head)) continue;
    for (let t = 0; t < tokens; t++) {
      const query = t * 3 * width + head * K;
      let most = -Infinity, sum = 0;
      for (let s = 0; s < tokens; s++) {
        const key = s * 3 * width + width + head * K;
        let product = 0;
        for (let i = 0; i < K; i++) product += qkv[query + i] * qkv[key + i];
        scores[s] = product / Math.sqrt(K);
        most = Math.max(most, scores[s]);
      }
      for (let s = 0; s < tokens; s++) sum += scores[s] = Math.exp(scores[s] - most);
      for (let s = 0; s < tokens; s++) {
        const value = s * 3 * width + 2 * width + head * K, share = scores[s] / sum;
        for (let i = 0; i < K; i++) mixed[t * width + head * K + i] += share * qkv[value + i];
      }
    }
  }
  return linear(mixed, width, tensor("attention.projection.weight"), tensor("attention.projection.bias"));
}

// Logits of one picture. `weights`: {pool, eps, tensors} by name, `shape` that of the model;
// `change`: {order: which patch stands at each place, dropped: places left out, off: "block,head" that are off,
// positions: whether they are added}.
function forward(weights, shape, picture, change) {
  const {width, blocks, heads} = shape, {eps, pool} = weights, get = name => weights.tensors[name];
  const patches = get("patches"), positions = get("embedding.positions"), N = shape.grid ** 2;
  const places = [...Array(N).keys()].filter(place => !change.dropped.has(place));
  let x = new Float32Array((places.length + 1) * width);
  x.set(get("embedding.class_token"));
  places.forEach((place, token) => {
    const start = (picture * N + change.order[place]) * width;
    x.set(patches.subarray(start, start + width), (token + 1) * width);
  });
  if (change.positions)
    [0, ...places.map(place => place + 1)].forEach((row, token) => {
      for (let i = 0; i < width; i++) x[token * width + i] += positions[row * width + i];
    });
  const add = branch => { for (let i = 0; i < x.length; i++) x[i] += branch[i]; };
  for (let block = 0; block < blocks; block++) {
    const tensor = name => get(`blocks.${block}.${name}`);
    const off = new Set([...Array(heads).keys()].filter(head => change.off.has(`${block},${head}`)));
    add(attend(layerNorm(x, width, tensor("norm1.weight"), tensor("norm1.bias"), eps), width, heads, tensor, off));
    const normed = layerNorm(x, width, tensor("norm2.weight"), tensor("norm2.bias"), eps);
    const hidden = linear(normed, width, tensor("mlp.fc1.weight"), tensor("mlp.fc1.bias")).map(gelu);
    add(linear(hidden, hidden.length / (places.length + 1), tensor("mlp.fc2.weight"), tensor("mlp.fc2.bias")));
  }
  const norm = tokens => layerNorm(tokens, width, get("norm.weight"), get("norm.bias"), eps);
  if (pool !== "mean_norm") x = norm(x);
  let read = x.slice(0, width);
  if (pool !== "cls") read = read.map((_, i) => places.reduce((sum, _, t) => sum + x[(t + 1) * width + i], 0) / places.length);
  if (pool === "mean_norm") read = norm(read);
  if (get("pre_logits.weight")) read = linear(read, width, get("pre_logits.weight"), get("pre_logits.bias")).map(Math.tanh);
  return linear(read, read.length, get("head.weight"), get("head.bias"));
}

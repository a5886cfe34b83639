// What the page shows of the numbers in it: one cursor (picture, snapshot, patch, block, head) for all views and runs.
"use strict";

const DATA = JSON.parse(document.getElementById("data").textContent);
const RUNS = DATA.runs;
const STOPS = [...new Set(RUNS.flatMap(run => run.snapshots.map(snapshot => snapshot.share)))].sort((a, b) => a - b);
const MEAN = -1;  // in the place of a head's number: the mean over the heads
const cursor = {picture: 0, stop: STOPS.length - 1, place: null, block: Infinity, head: MEAN};
// `place`: [x, y] from 0 to 1 over the picture, so that runs of other grids follow; null: what the head reads.

// ------------------------------------------------------------------ small parts

const by = id => document.getElementById(id);
const percent = share => `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)} %`;
const short = text => text.length > 24 ? text.slice(0, 23) + "…" : text;
const numbers = count => [...Array(count).keys()];

function element(kind, {text, parent, ...properties} = {}) {
  const node = document.createElement(kind);
  if (text !== undefined) node.textContent = text;
  for (const [name, value] of Object.entries(properties))
    name.includes("-") || name === "role" ? node.setAttribute(name, value) : node[name] = value;
  parent?.append(node);
  return node;
}

function drawing(kind, attributes, parent, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", kind);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  parent?.append(node);
  return node;
}

// Two halves, side by side or one above the other.
function halves(parent) {
  const pair = element("div", {className: "pair", parent});
  return [element("div", {parent: pair}), element("div", {parent: pair})];
}

// Viridis, which rises evenly in lightness and is read alike by all eyes, between a few of its colours.
const VIRIDIS = [[68, 1, 84], [72, 40, 120], [62, 74, 137], [49, 104, 142], [38, 130, 142], [31, 158, 137],
  [53, 183, 121], [109, 205, 89], [180, 222, 44], [253, 231, 37]];
const COLOURS = numbers(256).map(level => {
  const place = level / 255 * (VIRIDIS.length - 1), low = Math.min(Math.floor(place), VIRIDIS.length - 2);
  return VIRIDIS[low].map((value, i) => Math.round(value + (VIRIDIS[low + 1][i] - value) * (place - low)));
});
const LINES = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];  // Okabe and Ito 2008

// Values (N) on their grid, from `low` to `high`.
function paint(canvas, values, low, high) {
  const side = Math.round(Math.sqrt(values.length)), image = new ImageData(side, side);
  if (canvas.width !== side || canvas.height !== side) canvas.width = canvas.height = side;  // it takes a while
  for (let i = 0; i < values.length; i++) {
    const level = Math.round(255 * Math.min(1, Math.max(0, (values[i] - low) / (high - low || 1))));
    image.data.set(COLOURS[level], 4 * i);
    image.data[4 * i + 3] = 255;
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
}

// ------------------------------------------------------------------ what the numbers say at the cursor

// The last snapshot of a run that is not later than the slider; the first, where it has none so early.
const snapshotOf = run => run.snapshots.findLast(snapshot => snapshot.share <= STOPS[cursor.stop]) ?? run.snapshots[0];
const blockOf = run => Math.min(cursor.block, run.shape.blocks - 1);
const headOf = run => Math.min(cursor.head, run.shape.heads - 1);

// The number of the patch under the cursor in a run's own grid; null: what the head reads.
function patchOf(run) {
  const {grid} = run.shape;
  if (!cursor.place) return null;
  const [column, row] = cursor.place.map(share => Math.min(grid - 1, Math.floor(share * grid)));
  return row * grid + column;
}
const spot = (run, patch) => `row ${Math.floor(patch / run.shape.grid) + 1}, column ${patch % run.shape.grid + 1}`;
const reads = run => run.shape.pools ? "the mean of the patches" : "the class token";
const asking = run => patchOf(run) === null ? reads(run) : `the patch in ${spot(run, patchOf(run))}`;

// One picture's part of an array (B, ...): its values, and how far each axis of the rest reaches.
function part(packed) {
  const {picture} = cursor, [, ...shape] = packed.shape, size = shape.reduce((product, side) => product * side, 1);
  return {shape, values: packed.values.subarray(picture * size, (picture + 1) * size)};
}

// How much the token at the cursor takes of each token (T), in a block and head; null where the page does not hold it.
function attentionRow(run, block, head) {
  const {heads, tokens, extra, pools} = run.shape, snapshot = snapshotOf(run), patch = patchOf(run);
  const whole = DATA.every_head || heads === 1, onlyRead = !whole && patch === null, kept = whole || onlyRead ? heads : 1;
  if (kept < heads && head !== MEAN) return null;
  const {values} = part(onlyRead ? snapshot.read : snapshot.attention), own = head === MEAN ? numbers(kept) : [head];
  const asks = patch !== null ? [1 + extra + patch] : pools && whole ? numbers(tokens - 1).map(t => t + 1) : [0];
  const row = new Float32Array(tokens);
  for (const one of own)
    for (const ask of asks) {
      const start = ((block * kept + one) * (onlyRead ? 1 : tokens) + ask) * tokens;
      for (let t = 0; t < tokens; t++) row[t] += (values[start + t] / 255) ** 2 / (own.length * asks.length);
    }
  return row;
}
const patchesOf = (run, row) => row.subarray(1 + run.shape.extra);

// One row of an array's (B, rows, columns), of the picture at the cursor.
function rowOf(packed, row) {
  const {shape: [, columns], values} = part(packed);
  return [...values.subarray(row * columns, (row + 1) * columns)];
}

// Probabilities of the picture's classes after each block: rows of (block, class), by the classes that are kept.
function lensOf(run) {
  return numbers(run.shape.blocks + 1).map(block => {
    const logits = rowOf(snapshotOf(run).lens, block), sum = logits.pop();
    return logits.map(logit => Math.exp(logit - sum));
  });
}

// ------------------------------------------------------------------ a picture to point at

// The picture of a run with its grid and the cursor, and a map over it. `choose(patch)` is what a click or Enter does.
class Stage {
  constructor(parent, run, name, choose) {
    this.run = run;
    this.name = name;
    this.root = element("div", {className: "stage", parent, tabIndex: 0, role: "application"});
    this.image = element("img", {parent: this.root, alt: "", draggable: false});
    this.map = element("canvas", {parent: this.root, className: "map"});
    this.lines = element("div", {parent: this.root, className: "lines"});
    this.lines.style.backgroundSize = `${100 / run.shape.grid}% ${100 / run.shape.grid}%`;
    this.marker = element("div", {parent: this.root, className: "marker"});
    this.marker.style.width = this.marker.style.height = `${100 / run.shape.grid}%`;
    for (const kind of ["pointermove", "pointerdown"]) this.root.addEventListener(kind, event => this.point(event));
    this.root.addEventListener("keydown", event => this.key(event, choose));
    if (choose) this.root.addEventListener("click", () => choose(patchOf(run)));
    this.caption = element("p", {parent, className: "caption"});
  }

  point({clientX, clientY}) {
    const {left, top, width, height} = this.root.getBoundingClientRect();
    moveTo([(clientX - left) / width, (clientY - top) / height].map(share => Math.min(0.9999, Math.max(0, share))));
  }

  key(event, choose) {
    const steps = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]}, {grid} = this.run.shape;
    if (choose && (event.key === "Enter" || event.key === " ")) choose(patchOf(this.run));
    else if (event.key in steps) {
      const start = patchOf(this.run) ?? Math.floor(grid / 2) * (grid + 1), step = cursor.place ? steps[event.key] : [0, 0];
      const place = [start % grid, Math.floor(start / grid)].map((value, axis) => value + step[axis]);
      moveTo(place.map(value => (Math.min(grid - 1, Math.max(0, value)) + 0.5) / grid));
    } else return;
    event.preventDefault();
  }

  // `values` (N) lie over the picture, or nothing does.
  show(caption, values, low = 0, high = values && Math.max(...values)) {
    const source = this.run.pictures[cursor.picture];
    if (this.image.src !== source) this.image.src = source;
    this.map.hidden = !values;
    if (values) paint(this.map, values, low, high);
    this.caption.textContent = caption;
    this.root.setAttribute("aria-label", `${this.name}. ${caption} Arrow keys move from patch to patch.`);
    this.mark();
  }

  // Put the frame where the cursor is.
  mark() {
    const {run} = this, patch = patchOf(run);
    this.marker.hidden = patch === null;
    if (patch !== null) {
      this.marker.style.left = `${100 * (patch % run.shape.grid) / run.shape.grid}%`;
      this.marker.style.top = `${100 * Math.floor(patch / run.shape.grid) / run.shape.grid}%`;
    }
  }
}

// ------------------------------------------------------------------ the views: each is made once and then shown again

// A view has `shape(run)`, a line about the shapes in this model; `build(parent, run)`, which returns what shows it
// at the cursor; and `follows`: whether that depends on the patch, the block or the head.
const VIEWS = {
  patches: {
    follows: true,
    shape({size, channels, grid, width, tokens, stem}) {
      const side = size / grid, patches = `${side} × ${side} × ${channels} = ${side ** 2 * channels} numbers`;
      const cut = stem ? `${stem} convolutions and ${Math.log2(side)} poolings, each halving the side,` : `${grid ** 2} patches of ${patches}`;
      return `(1, ${channels}, ${size}, ${size}) → ${cut} → (1, ${grid ** 2}, ${width}) → ` +
        `(1, ${tokens}, ${width}) with the class token`;
    },
    build(parent, run) {
      const [left, right] = halves(parent), stage = new Stage(left, run, "The picture and its patches");
      const patch = element("canvas", {parent: right, className: "patch"});
      const caption = element("p", {parent: right, className: "caption"});
      return () => {
        const {grid} = run.shape, number = patchOf(run) ?? Math.floor(grid / 2) * (grid + 1);
        const lens = lensOf(run).at(-1), best = lens.indexOf(Math.max(...lens)), label = run.labels[cursor.picture];
        const said = run.class_names[run.classes[cursor.picture][best]];
        const truth = label === null ? "" : `, true: ${run.class_names[label]}`;
        stage.show(`Predicted: ${said} (${percent(lens[best])})${truth}. Selected: ${asking(run)}.`);
        onceLoaded(stage.image, () => {
          const side = stage.image.naturalWidth / grid, corner = [number % grid, Math.floor(number / grid)];
          patch.width = patch.height = side;
          patch.getContext("2d").drawImage(stage.image, ...corner.map(place => place * side), side, side, 0, 0, side, side);
        });
        caption.textContent = `The patch in ${spot(run, number)}: one token, as a word is of a sentence.`;
      };
    },
  },

  positions: {
    follows: true,
    shape: ({grid, width, tokens}) => `contents: (1, ${grid * grid}, ${width}); positions: (1, ${tokens}, ${width})`,
    build(parent, run) {
      const [left, right] = halves(parent), {grid} = run.shape, N = grid * grid;
      const content = new Stage(left, run, "Similarity of content"), position = new Stage(right, run, "Similarity of position");
      return () => {
        const snapshot = snapshotOf(run), patch = patchOf(run) ?? Math.floor(grid / 2) * (grid + 1);
        const row = values => Float32Array.from(values.subarray(patch * N, (patch + 1) * N), code => code / 127.5 - 1);
        const of = patchOf(run) === null ? `the patch in ${spot(run, patch)} (select another one)` : asking(run);
        content.show(`How similar the content is to that of ${of}.`, row(part(snapshot.content).values), -1, 1);
        if (snapshot.positions) position.show(`How similar the position is to that of ${of}.`, row(snapshot.positions.values), -1, 1);
        else position.show("This model has no learned positions to show.", null);
      };
    },
  },

  attention: {
    follows: true,
    shape: ({width, heads, tokens, blocks}) => `${blocks} blocks; q, k, v each (1, ${heads}, ${tokens}, ` +
      `${width / heads}), A (1, ${heads}, ${tokens}, ${tokens})`,
    build(parent, run) {
      const [left, right] = halves(parent), stage = new Stage(left, run, "Attention");
      const cells = headButtons(right, run, [MEAN, ...numbers(run.shape.heads)], (block, head) => {
        Object.assign(cursor, {block, head});
        showAll({onlyFollowing: true});
      });
      const note = element("p", {className: "caption", parent: right});
      return () => {
        const block = blockOf(run), head = headOf(run), row = attentionRow(run, block, head);
        const who = `${head === MEAN ? "the mean of the heads" : `head ${head + 1}`} of block ${block + 1}`;
        if (row) stage.show(sentence(run, row, who), patchesOf(run, row));
        else stage.show(`Of ${who} this page holds only what ${reads(run)} looks at: press Esc, or take the mean.`, null);
        for (const [name, cell] of cells) {
          const [ofBlock, ofHead] = name.split(",").map(Number), values = attentionRow(run, ofBlock, ofHead);
          cell.firstChild.hidden = !values;
          if (values) paint(cell.firstChild, patchesOf(run, values), 0, Math.max(...patchesOf(run, values)));
          cell.setAttribute("aria-pressed", ofBlock === block && ofHead === head);
        }
        note.textContent = `Each small map: what ${asking(run)} looks at, scaled to its brightest patch.`;
      };
    },
  },

  flow: {
    shape: ({tokens, grid}) => `R (${tokens}, ${tokens}); shown: the rows that the head reads, over ${grid} × ${grid} patches`,
    build(parent, run) {
      const [left, right] = halves(parent);
      const rollout = new Stage(left, run, "Rollout"), relevance = new Stage(right, run, "Relevance");
      return () => {
        const of = name => Float32Array.from(part(snapshotOf(run)[name]).values, code => (code / 255) ** 2);
        const lens = lensOf(run).at(-1), best = run.classes[cursor.picture][lens.indexOf(Math.max(...lens))];
        const spoke = of("relevance"), name = run.class_names[best];
        rollout.show(`Rollout: how much of each patch reaches ${reads(run)}.`, of("rollout"));
        if (spoke.some(Boolean)) relevance.show(`Relevance: evidence for ${name}.`, spoke);
        else relevance.show(`Relevance: no evidence for ${name}; an untrained head is zero.`, null);
      };
    },
  },

  lens: {
    shape: ({width, blocks}) => `(1, ${width}) → (1, classes), ${blocks + 1} times`,
    build(parent, run) {
      const chart = element("div", {parent, className: "chart"}), fill = foldedTable(parent);
      return () => {
        const lens = lensOf(run), names = run.classes[cursor.picture].map(index => run.class_names[index]);
        const label = run.classes[cursor.picture].indexOf(run.labels[cursor.picture]), last = lens.at(-1);
        const order = numbers(names.length).sort((a, b) => last[b] - last[a]);
        const shown = [...new Set([label, ...order].filter(index => index >= 0))].slice(0, LINES.length);
        const lines = shown.map(index => ({name: names[index] + (index === label ? " (true)" : ""),
          values: lens.map(row => row[index]), bold: index === label}));
        plot(chart, lines, {high: 1, format: percent, title: "Probability after each block"});
        fill(["after block", ...order.map(index => names[index])],
          lens.map((row, block) => [block, ...order.map(index => percent(row[index]))]));
      };
    },
  },

  stream: {
    follows: true,
    shape: ({tokens, width, blocks}) => `z (1, ${tokens}, ${width}), before the first block and after each of ${blocks}`,
    build(parent, run) {
      const [left, right] = halves(parent), stage = new Stage(right, run, "Length of each patch");
      const chart = element("div", {parent: left, className: "chart"}), fill = foldedTable(left);
      return () => {
        const {blocks, tokens, extra} = run.shape, first = 1 + extra, patch = patchOf(run), block = blockOf(run) + 1;
        const states = numbers(blocks + 1).map(state => rowOf(snapshotOf(run).norms, state));
        const mean = state => state.slice(first).reduce((sum, value) => sum + value) / (tokens - first);
        const ofPatches = states[block].slice(first);
        const lines = [{name: "class token", values: states.map(state => state[0])},
          {name: "patches, mean", values: states.map(mean)}];
        if (patch !== null) lines.push({name: "chosen patch", values: states.map(state => state[first + patch]), bold: true});
        const format = value => value.toPrecision(3);
        plot(chart, lines, {format, title: "Length of the tokens after each block"});
        fill(["after block", ...lines.map(line => line.name)],
          states.map((_, state) => [state, ...lines.map(line => format(line.values[state]))]));
        const [low, high] = [Math.min(...ofPatches), Math.max(...ofPatches)];
        stage.show(`After block ${block}: lengths from ${format(low)} to ${format(high)}.`, ofPatches, Math.min(low, high / 2), high);
      };
    },
  },

  change: {
    follows: true,
    shape: ({parameters}) => `${parameters.toLocaleString("en")} parameters`,
    build: (parent, run) => run.weights ? new Bench(parent, run).show : noBench(parent),
  },
};

function sentence(run, row, who) {
  const patches = patchesOf(run, row), best = patches.indexOf(Math.max(...patches));
  const asks = asking(run), extra = run.shape.extra ? `, ${percent(row.subarray(1, 1 + run.shape.extra).reduce((a, b) => a + b))} to registers` : "";
  return `In ${who}, ${asks} looks most at ${spot(run, best)} (${percent(patches[best])}); ${percent(row[0])} go to the ` +
    `class token${extra}.`;
}

// A button for each block (a row) and head (a column); arrow keys move among them. Returns them by "block,head".
function headButtons(parent, run, heads, choose) {
  const grid = element("div", {className: "heads", parent, role: "group", "aria-label": "Block and head"});
  grid.style.gridTemplateColumns = `auto repeat(${heads.length}, minmax(0, 1fr))`;
  element("span", {parent: grid, text: "block"});
  for (const head of heads) element("span", {parent: grid, text: head === MEAN ? "mean" : head + 1, title: "head"});
  const cells = new Map();
  for (const block of numbers(run.shape.blocks)) {
    element("span", {parent: grid, text: block + 1});
    for (const head of heads) {
      const name = `block ${block + 1}, ${head === MEAN ? "mean of the heads" : `head ${head + 1}`}`;
      const cell = element("button", {parent: grid, type: "button", title: name, "aria-label": name, "aria-pressed": false});
      cell.tabIndex = cells.size ? -1 : 0;
      element("canvas", {parent: cell});
      cell.addEventListener("click", () => choose(block, head));
      cells.set(`${block},${head}`, cell);
    }
  }
  grid.addEventListener("keydown", event => {
    const all = [...cells.values()], steps = {ArrowLeft: -1, ArrowRight: 1, ArrowUp: -heads.length, ArrowDown: heads.length};
    const next = all[all.indexOf(event.target) + steps[event.key]];
    if (!(event.key in steps)) return;
    event.preventDefault();
    if (!next) return;
    for (const cell of all) cell.tabIndex = cell === next ? 0 : -1;
    next.focus();
  });
  return cells;
}

// ------------------------------------------------------------------ charts and tables

// Lines {name, values, bold} over the blocks, from 0 to `high`.
function plot(parent, lines, {title, format, high = Math.max(...lines.flatMap(line => line.values))}) {
  const width = 340, height = 180, left = 40, bottom = 22, top = 8, steps = lines[0].values.length - 1;
  const x = step => left + (width - left - 8) * step / steps;
  const y = value => height - bottom - (height - bottom - top) * Math.min(1, value / high);
  const described = lines.map(line => `${line.name} from ${format(line.values[0])} to ${format(line.values.at(-1))}`);
  const svg = drawing("svg", {viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${title}: ${described.join("; ")}`});
  for (const share of [0, 0.5, 1]) {
    drawing("line", {x1: left, x2: width - 8, y1: y(share * high), y2: y(share * high), class: "rule"}, svg);
    drawing("text", {x: left - 5, y: y(share * high) + 4, class: "end"}, svg, format(share * high));
  }
  for (const step of numbers(steps + 1))
    if (step % Math.ceil(steps / 12) === 0) drawing("text", {x: x(step), y: height - 6, class: "middle"}, svg, step);
  [...lines.entries()].reverse().forEach(([number, {values, bold, name}]) => {
    const points = values.map((value, step) => `${x(step)},${y(value)}`).join(" "), stroke = LINES[number];
    drawing("polyline", {points, stroke, class: bold ? "bold" : ""}, svg);
    values.forEach((value, step) => {
      const dot = drawing("circle", {cx: x(step), cy: y(value), r: bold ? 3 : 2.2, fill: stroke}, svg);
      drawing("title", {}, dot, `${name}, after block ${step}: ${format(value)}`);
    });
  });
  const legend = element("ul", {className: "legend"});
  lines.forEach(({name, values}, number) => {
    const item = element("li", {parent: legend, text: `${short(name)} ${format(values.at(-1))}`});
    item.style.setProperty("--colour", LINES[number]);
  });
  parent.replaceChildren(element("p", {className: "caption", text: `${title} (0: before the first)`}), svg, legend);
}

// A table behind a line that unfolds it, as a function that fills it.
function foldedTable(parent) {
  const details = element("details", {parent});
  element("summary", {parent: details, text: "the numbers"});
  const table = element("table", {parent: element("div", {parent: details, className: "wide"})});
  return (header, rows) => table.replaceChildren(...[header, ...rows].map(row => {
    const line = element("tr");
    for (const text of row) element(row === header ? "th" : "td", {parent: line, text});
    return line;
  }));
}

// ------------------------------------------------------------------ step 7: what a change does

// The prediction with and without a change, computed by the page itself.
class Bench {
  constructor(parent, run) {
    this.run = run;
    this.show = onlyFollowing => onlyFollowing ? this.stage.mark() : this.compute();
    this.before = [];  // what it says of each picture as it is
    this.change = unchanged(run);
    const [left, right] = halves(parent);
    this.stage = new Stage(left, run, "The changed picture", patch => this.drop(patch));
    this.stage.root.classList.add("changed");
    this.offerAll(element("p", {className: "buttons", parent: left}));
    this.bars = element("div", {parent: right, className: "bars"});
    element("p", {parent: right, className: "caption", text: "Heads: press one to turn it off or on."});
    this.cells = headButtons(right, run, numbers(run.shape.heads), (block, head) => this.turn(`${block},${head}`));
  }

  offerAll(parent) {
    const button = (text, act) => element("button", {parent, type: "button", text}).addEventListener("click", act);
    button("shuffle patches", () => this.compute({order: shuffled(this.run.shape.grid ** 2)}));
    button("put all back", () => { positions.checked = true; this.compute(unchanged(this.run)); });
    const positions = element("input", {parent: element("label", {parent, text: "positions "}), type: "checkbox", checked: true});
    positions.addEventListener("change", () => this.compute({positions: positions.checked}));
  }

  drop(patch) {
    const {dropped, order} = this.change;
    if (patch !== null && !dropped.delete(patch) && dropped.size < order.length - 1) dropped.add(patch);  // one stays
    this.compute();
  }

  turn(name) {
    const {off} = this.change;
    off.delete(name) || off.add(name);
    this.compute();
  }

  // The probability of each class.
  predict(change) {
    const {weights, shape} = this.run;
    return softmax(forward(weights, shape, cursor.picture, change));
  }

  compute(news) {
    const {run} = this, change = Object.assign(this.change, news);
    const before = this.before[cursor.picture] ??= this.predict(unchanged(run)), after = this.predict(change);
    const most = numbers(before.length).sort((a, b) => Math.max(before[b], after[b]) - Math.max(before[a], after[a]));
    this.bars.replaceChildren(...most.slice(0, 6).map(index => bar(run.class_names[index], before[index], after[index])));
    const said = values => values.indexOf(Math.max(...values));
    const left = `${change.dropped.size} of ${change.order.length} patches left out, ` +
      `${change.off.size} ${change.off.size === 1 ? "head" : "heads"} off`;
    const verdict = said(before) === said(after) ? `still ${run.class_names[said(after)]}`
      : `${run.class_names[said(before)]} becomes ${run.class_names[said(after)]}`;
    this.stage.show(`${left}: ${verdict} (${percent(after[said(after)])}).`);
    for (const [name, cell] of this.cells) cell.setAttribute("aria-pressed", !change.off.has(name));
    drawChanged(this.stage, run, change);
  }
}

// In place of a bench, where the page cannot run the model.
function noBench(parent) {
  element("p", {parent, className: "caption", text: "This file does not carry the weights of this model: only those of " +
    "this project's ViTs of up to a million parameters."});
  return () => {};
}

const unchanged = ({shape: {grid}}) =>
  ({order: numbers(grid ** 2), dropped: new Set(), off: new Set(), positions: true});

// The picture with its patches where they are now, those left out empty.
function drawChanged({image, map}, run, {order, dropped}) {
  onceLoaded(image, () => {
    const {grid} = run.shape, side = image.naturalWidth / grid, context = map.getContext("2d");
    const at = number => [number % grid * side, Math.floor(number / grid) * side];
    map.hidden = false;
    map.width = map.height = image.naturalWidth;
    for (const place of numbers(order.length))
      if (!dropped.has(place)) context.drawImage(image, ...at(order[place]), side, side, ...at(place), side, side);
  });
}

function onceLoaded(image, act) {
  if (image.complete && image.naturalWidth) act();
  else image.addEventListener("load", act, {once: true});
}

function bar(name, before, after) {
  const row = element("div", {className: "bar"});
  element("span", {parent: row, className: "name", text: short(name), title: name});
  const track = element("span", {parent: row, className: "track"});
  element("span", {parent: track, className: "before"}).style.width = `${100 * before}%`;
  element("span", {parent: track, className: "after"}).style.width = `${100 * after}%`;
  element("span", {parent: row, className: "value", text: before === after ? percent(after) : `${percent(before)} → ${percent(after)}`});
  return row;
}

function softmax(logits) {
  const most = Math.max(...logits), powers = [...logits].map(logit => Math.exp(logit - most));
  const sum = powers.reduce((total, power) => total + power);
  return powers.map(power => power / sum);
}

const shuffled = count =>
  numbers(count).map(number => [Math.random(), number]).sort(([a], [b]) => a - b).map(([, number]) => number);

// ------------------------------------------------------------------ the cursor, and the page as a whole

const shown = [];  // {show, follows} of each view of each run
let waiting = false;

function showAll({onlyFollowing = false} = {}) {
  for (const {show, follows} of shown) if (follows || !onlyFollowing) show(onlyFollowing);
}

// Many moves of a pointer come between two frames: the last is shown.
function moveTo(place) {
  cursor.place = place;
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    showAll({onlyFollowing: true});
    by("said").textContent = [...document.querySelectorAll("#attention .stage + .caption")].map(
      ({textContent}) => textContent).join(" ");
  });
}

function buildControls() {
  by("title").textContent = document.title;
  const left = DATA.left_out ? ` ${DATA.left_out} more are left out, to keep this file small.` : "";
  const kept = DATA.every_head ? "" : " Of single heads it holds what the head reads; of every patch the mean over heads.";
  by("about").textContent = RUNS.map(
    run => `${run.source}: ${run.model}, ${run.class_names.length} classes`).join("; ") + "." + left + kept;
  DATA.pictures.forEach(({name, label}, number) => {
    const text = label === null ? name : `${label}: ${name}`;
    const button = element("button", {parent: by("pictures"), type: "button", role: "radio", title: text, "aria-label": text});
    element("img", {parent: button, alt: "", src: RUNS[0].pictures[number]});
    button.addEventListener("click", () => choosePicture(number));
  });
  by("pictures").addEventListener("keydown", event => {
    const step = {ArrowLeft: -1, ArrowRight: 1}[event.key];
    if (!step) return;
    event.preventDefault();
    choosePicture((cursor.picture + step + DATA.pictures.length) % DATA.pictures.length);
    by("pictures").children[cursor.picture].focus();
  });
  const slider = by("snapshot");
  Object.assign(slider, {max: STOPS.length - 1, value: cursor.stop, disabled: STOPS.length === 1});
  slider.addEventListener("input", () => {
    cursor.stop = Number(slider.value);
    showMoment();
    showAll();
  });
  addEventListener("keydown", event => { if (event.key === "Escape") moveTo(null); });
}

function choosePicture(number) {
  cursor.picture = number;
  [...by("pictures").children].forEach((button, place) => {
    button.setAttribute("aria-checked", place === number);
    button.tabIndex = place === number ? 0 : -1;
  });
  showAll();
}

function showMoment() {
  const names = [...new Set(RUNS.map(run => snapshotOf(run).name))];
  by("when").textContent = names.join("; ") + (STOPS.length === 2 ? " (this run kept no weights in between)" : "");
  by("snapshot").setAttribute("aria-valuetext", by("when").textContent);
}

function buildViews(names) {
  for (const name of names) {
    const {shape, build, follows} = VIEWS[name];
    const parent = by(name).querySelector(".runs");
    for (const run of RUNS) {
      const panel = element("article", {className: "run", parent});
      if (RUNS.length > 1) element("h3", {parent: panel, text: run.name});
      element("p", {className: "shapes", parent: panel, text: shape(run.shape)});
      shown.push({show: build(panel, run), follows});
      shown.at(-1).show();
    }
  }
}

async function start() {
  buildControls();
  showMoment();
  choosePicture(0);
  for (const run of RUNS) for (const snapshot of run.snapshots) Object.assign(snapshot, await unpack(snapshot.arrays));
  buildViews(Object.keys(VIEWS).filter(name => name !== "change"));
  for (const {weights} of RUNS) if (weights) weights.tensors = inSteps(await unpack(weights.arrays));  // takes longer
  buildViews(["change"]);
  document.body.dataset.ready = "yes";
}

start();

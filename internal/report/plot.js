"use strict";
// Small plots in SVG and canvas. Colours are CSS variables, so that an SVG need not be drawn anew for another colour scheme.

const NS = "http://www.w3.org/2000/svg";

function el(tag, attrs, ...children) {
  const e = document.createElement(tag);
  for (const k in attrs || {}) k === "text" ? e.textContent = attrs[k] : e.setAttribute(k, attrs[k]);
  for (const c of children) if (c != null) e.append(c);
  return e;
}

function svg(tag, attrs, text) {
  const e = document.createElementNS(NS, tag);
  for (const k in attrs) e.setAttribute(k, attrs[k]);
  if (text != null) e.textContent = text;
  return e;
}

const color = i => `var(--s${i % 8})`;
const dash = i => ["", "6 3", "2 3", "8 3 2 3"][Math.floor(i / 8) % 4];

// --- numbers ---------------------------------------------------------------

function ms(v) {
  if (v <= 0) return "0";
  if (v < 1) return (v * 1000).toFixed(0) + " µs";
  if (v < 10) return +v.toFixed(1) + " ms";
  if (v < 1000) return v.toFixed(0) + " ms";
  if (v < 1e4) return +(v / 1000).toFixed(2) + " s";
  return +(v / 1000).toFixed(v < 1e5 ? 1 : 0) + " s";
}
function seconds(v) {
  if (v >= 5400) return +(v / 3600).toFixed(2) + " h";
  if (v >= 180 || v >= 60 && v % 60 === 0) return +(v / 60).toFixed(1) + " min";
  return +v.toFixed(v < 10 ? 2 : 0) + " s";
}
function count(v) {
  if (v >= 1e9) return +(v / 1e9).toFixed(2) + " G";
  if (v >= 1e6) return +(v / 1e6).toFixed(2) + " M";
  if (v >= 1e4) return +(v / 1e3).toFixed(0) + " k";
  return +v.toFixed(v < 10 ? 2 : 0) + "";
}
const percent = v => (100 * v).toFixed(1) + " %";
const whole = v => +(100 * v).toFixed(1) + " %";

// --- scales ----------------------------------------------------------------

// linear returns a scale with ticks at round numbers, or, for a clock, at round minutes and hours.
function linear(a, b, from, to, clock) {
  if (!(b > a)) b = a + 1;
  const f = v => from + (v - a) / (b - a) * (to - from);
  const steps = clock ? [1, 2, 5, 10, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200] : [1, 2, 5, 10].map(m => m * 10 ** Math.floor(Math.log10((b - a) / 4)));
  const step = steps.find(s => (b - a) / s <= 6 && b - a >= s) || (b - a) / 4;
  f.ticks = [];
  for (let t = Math.ceil(a / step) * step; t <= b + step * 1e-6; t += step) f.ticks.push(t);
  f.invert = p => a + (p - from) / (to - from) * (b - a);
  return f;
}

function logarithmic(a, b, from, to) {
  a = Math.max(a, 1e-3);
  if (!(b > a * 1.01)) b = a * 10;
  const la = Math.log10(a), lb = Math.log10(b);
  const f = v => from + (Math.log10(Math.max(v, a)) - la) / (lb - la) * (to - from);
  f.ticks = [];
  const marks = lb - la > 2.2 ? [1] : [1, 2, 5];
  for (let e = Math.floor(la); e <= lb; e++) for (const m of marks) {
    const t = m * 10 ** e;
    if (t >= a * 0.999 && t <= b * 1.001) f.ticks.push(t);
  }
  f.invert = p => 10 ** (la + (p - from) / (to - from) * (lb - la));
  return f;
}

// --- tooltip ---------------------------------------------------------------

const tip = document.getElementById("tip");
function show(event, text) {
  tip.textContent = text;
  tip.style.display = "block";
  const r = tip.getBoundingClientRect();
  tip.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - r.width - 6)) + "px";
  tip.style.top = Math.max(4, Math.min(event.clientY + 14, innerHeight - r.height - 6)) + "px";
}
const hide = () => { tip.style.display = "none"; };

function hover(node, text) {
  node.addEventListener("mousemove", e => show(e, text(e)));
  node.addEventListener("mouseleave", hide);
}

// --- plots -----------------------------------------------------------------

const W = 520, H = 250;

function frame(o) {
  const left = 54, right = 14, top = 12, bottom = o.bottom || 34, width = o.width || W, height = H + bottom - 34;
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": o.label || "" });
  const x = (o.xlog ? logarithmic : linear)(o.x0, o.x1, left, width - right, o.clock);
  const y = (o.ylog ? logarithmic : linear)(o.y0, o.y1, height - bottom, top);
  for (const t of y.ticks) {
    root.append(svg("line", { class: "grid-line", x1: left, x2: width - right, y1: y(t), y2: y(t) }));
    root.append(svg("text", { x: left - 6, y: y(t) + 4, "text-anchor": "end" }, (o.ytick || o.yfmt)(t)));
  }
  let last = -1e9;
  for (const t of x.ticks) {
    if (x(t) - last < 44) continue;
    last = x(t);
    root.append(svg("line", { class: "grid-line", x1: x(t), x2: x(t), y1: top, y2: height - bottom }));
    root.append(svg("text", { x: x(t), y: height - bottom + 15, "text-anchor": "middle" }, o.xfmt(t)));
  }
  root.append(svg("line", { class: "axis", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom }));
  if (o.xlabel) root.append(svg("text", { x: (left + width - right) / 2, y: height - 3, "text-anchor": "middle" }, o.xlabel));
  return { root, x, y, left, right: width - right, top, bottom: height - bottom, width };
}

function extent(series, k, positive) {
  let a = Infinity, b = -Infinity;
  for (const s of series) for (const p of s.points) if (p[k] != null && (!positive || p[k] > 0)) { a = Math.min(a, p[k]); b = Math.max(b, p[k]); }
  return a > b ? [0, 1] : [a, b];
}

// lines draws series [{name, color, dash, points: [[x, y]], marks: [[x, y, text]]}].
function lines(o) {
  const [x0, x1] = extent(o.series, 0, o.xlog), [, y1] = extent(o.series, 1, false);
  const f = frame({ xfmt: count, yfmt: count, ...o, x0: o.x0 ?? x0, x1: o.x1 ?? x1, y0: o.y0 ?? 0, y1: o.y1 ?? (y1 > 0 ? y1 * 1.05 : 1) });
  for (const s of o.series) {
    let d = "", pen = false;
    for (const [px, py] of s.points) {
      if (py == null) { pen = false; continue; }
      d += (pen ? "L" : "M") + f.x(px).toFixed(1) + " " + f.y(py).toFixed(1);
      pen = true;
    }
    f.root.append(svg("path", { d, fill: "none", stroke: s.color, "stroke-width": 1.8, "stroke-dasharray": s.dash || "", "stroke-linejoin": "round" }));
    s.points.forEach(([px, py], i) => { // a single point between gaps makes no line, so it is drawn as a dot
      if (py != null && s.points[i - 1]?.[1] == null && s.points[i + 1]?.[1] == null) f.root.append(svg("circle", { cx: f.x(px), cy: f.y(py), r: 2, fill: s.color }));
    });
    if (o.dots) for (const [px, py] of s.points) f.root.append(svg("circle", { cx: f.x(px), cy: f.y(py), r: 2.6, fill: s.color }));
    for (const [px, py, text, row] of s.marks || []) {
      f.root.append(svg("circle", { cx: f.x(px), cy: f.y(py), r: 5.5, fill: "none", stroke: s.color, "stroke-width": 2 }));
      const end = f.x(px) > (f.left + f.right) / 2;
      const t = svg("text", { x: f.x(px) + (end ? -9 : 9), y: f.y(py) + 16 + 13 * (row || 0), "text-anchor": end ? "end" : "start", class: "value" }, text);
      f.root.append(t);
    }
  }
  for (const r of o.rules || []) {
    f.root.append(svg("line", { x1: f.left, x2: f.right, y1: f.y(r.y), y2: f.y(r.y), stroke: "var(--soft)", "stroke-dasharray": "3 4" }));
    f.root.append(svg("text", { x: f.right, y: f.y(r.y) - 4, "text-anchor": "end" }, r.text));
  }
  const cursor = svg("line", { y1: f.top, y2: f.bottom, stroke: "var(--soft)", "stroke-width": 1, visibility: "hidden" });
  f.root.append(cursor);
  f.root.addEventListener("mousemove", e => {
    const box = f.root.getBoundingClientRect(), px = (e.clientX - box.left) / box.width * f.width;
    if (px < f.left || px > f.right) { cursor.setAttribute("visibility", "hidden"); return hide(); }
    cursor.setAttribute("x1", px); cursor.setAttribute("x2", px); cursor.setAttribute("visibility", "visible");
    const v = f.x.invert(px), rows = [(o.xfmt || count)(v)];
    for (const s of o.series.slice(0, 24)) {
      let best = null;
      for (const p of s.points) if (p[1] != null && (!best || Math.abs(p[0] - v) < Math.abs(best[0] - v))) best = p;
      if (best) rows.push(`${s.name}: ${(o.yfmt || count)(best[1])}`);
    }
    show(e, rows.join("\n"));
  });
  f.root.addEventListener("mouseleave", () => { cursor.setAttribute("visibility", "hidden"); hide(); });
  return f.root;
}

// tilt is the angle, in degrees, of labels that do not fit side by side. letter is about the width of a letter, in pixels.
const tilt = 60, letter = 6;

// bars draws groups [{name, color, values: []}]: a bar for each value, above the label of the same index.
function bars(o) {
  const all = o.groups.flatMap(g => g.values).filter(v => v > 0);
  const y1 = Math.max(...all, o.ylog ? 1e-3 : 0) * (o.ylog ? 1.6 : 1.12), y0 = o.ylog ? Math.max(Math.min(...all) / 2, y1 / 1e7) : 0;
  const shown = o.labels.map(l => l.length > 24 ? l.slice(0, 23) + "…" : l), longest = Math.max(...shown.map(l => l.length)) * letter;
  const leaning = longest > (W - 68) / o.labels.length;
  const f = frame({ yfmt: count, ...o, bottom: leaning ? 18 + Math.ceil(longest * Math.sin(tilt * Math.PI / 180)) : 0, xfmt: () => "", x0: 0, x1: 1, y0, y1: o.y1 ?? y1 });
  f.root.querySelectorAll(".grid-line").forEach(l => { if (l.getAttribute("x1") === l.getAttribute("x2")) l.remove(); });
  const slot = (f.right - f.left) / o.labels.length, n = o.groups.length, width = Math.min(slot * 0.8 / n, 46);
  o.labels.forEach((label, i) => {
    const middle = f.left + slot * (i + 0.5);
    if (leaning) f.root.append(svg("text", { x: middle + 4, y: f.bottom + 12, "text-anchor": "end", transform: `rotate(-${tilt} ${middle + 4} ${f.bottom + 12})` }, shown[i]));
    else f.root.append(svg("text", { x: middle, y: f.bottom + 15, "text-anchor": "middle" }, shown[i]));
    o.groups.forEach((g, j) => {
      const v = g.values[i];
      if (!(v > 0)) return;
      const x = middle + (j - n / 2) * width, y = f.y(v);
      const r = svg("rect", { x: x + 0.5, y, width: Math.max(width - 1, 1), height: Math.max(f.bottom - y, 0.5), fill: g.color || (o.colors || [])[i] || color(i), "fill-opacity": g.opacity ?? 1, rx: 1.5 });
      hover(r, () => `${label}${g.name ? ", " + g.name : ""}: ${o.yfmt(v)}`);
      f.root.append(r);
      if (o.values && slot > 44) f.root.append(svg("text", { x: x + width / 2, y: y - 4, "text-anchor": "middle", class: "value" }, o.yfmt(v)));
    });
  });
  return f.root;
}

// dashed is a background that looks like a dashed line.
function dashed(color, dash) {
  let at = 0;
  const stops = dash.split(" ").map((n, i) => `${i % 2 ? "transparent" : color} ${at}px ${at += +n}px`);
  return `repeating-linear-gradient(90deg, ${stops.join(", ")})`;
}

function legend(items, box) {
  const l = el("div", { class: "legend" });
  for (const it of items) {
    const i = el("i", { class: box ? "box" : "" });
    i.style.background = it.color;
    if (it.opacity != null) i.style.opacity = it.opacity;
    if (it.dash) i.style.background = dashed(it.color, it.dash);
    l.append(el("span", {}, i, it.name));
  }
  return l;
}

const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const painted = []; // canvases to paint again when the colours change
function canvas(height, paint) {
  const c = el("canvas", {});
  c.style.height = height + "px";
  const again = () => {
    const ratio = devicePixelRatio || 1, width = c.clientWidth || 1000;
    c.width = width * ratio; c.height = height * ratio;
    const g = c.getContext("2d");
    g.scale(ratio, ratio);
    paint(g, width, height);
  };
  painted.push(again);
  new ResizeObserver(again).observe(c);
  return c;
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => painted.forEach(p => p()));

// heat draws rows of values over time as shades of a colour.
function heat(o) {
  const rows = o.rows.length, row = rows > 24 ? 9 : rows > 12 ? 13 : 20, left = 84, bottom = 18;
  const most = o.most ?? Math.max(...o.rows.flat(), 1e-9);
  const c = canvas(rows * row + bottom, (g, width) => {
    const a = css("--heat0").split(",").map(Number), b = css("--heat1").split(",").map(Number);
    const n = o.rows[0].length, w = (width - left) / n;
    g.font = "11px system-ui, sans-serif";
    o.rows.forEach((values, i) => {
      values.forEach((v, k) => {
        const t = Math.min(Math.max(v / most, 0), 1);
        g.fillStyle = `rgb(${a.map((x, j) => Math.round(x + (b[j] - x) * t)).join(",")})`;
        g.fillRect(left + k * w, i * row, Math.ceil(w), row - 1);
      });
      if (rows <= 24 || i % 4 === 0) { g.fillStyle = css("--soft"); g.textAlign = "right"; g.fillText(o.names[i] || "", left - 6, i * row + row / 2 + 4); }
    });
    g.fillStyle = css("--soft");
    const x = linear(0, n * o.step, left, width, true);
    for (const t of x.ticks) { g.textAlign = t === 0 ? "left" : x(t) > width - 20 ? "right" : "center"; g.fillText(seconds(t), x(t), rows * row + 13); }
  });
  hover(c, e => {
    const box = c.getBoundingClientRect(), k = Math.floor((e.clientX - box.left - left) / (box.width - left) * o.rows[0].length), i = Math.floor((e.clientY - box.top) / row);
    if (k < 0 || i >= rows || o.rows[i]?.[k] == null) return o.title;
    return `${o.names[i]} at ${seconds(k * o.step)}: ${o.fmt(o.rows[i][k])}`;
  });
  return c;
}

const data = JSON.parse(document.getElementById("data").textContent);
const page = document.getElementById("page");
page.replaceChildren();
const runs = data.runs;

// --- what distinguishes runs -----------------------------------------------

const facets = [
  ["policy", r => r.policy], ["note", r => r.note || ""], ["workers", r => r.workers + " workers"], ["routers", r => r.routers ? r.routers + " routers" : ""], ["sync", r => r.sync ? "sync " + r.sync : ""],
  ["rate", r => +r.rate.toPrecision(4) + "×"], ["kv_tokens", r => r.kv_tokens ? count(r.kv_tokens) + " KV tokens" : ""], ["profile", r => r.profile], ["seed", r => "seed " + r.seed],
];
const varying = facets.filter(([, f]) => new Set(runs.map(f)).size > 1);
const label = r => (varying.length ? varying : facets.slice(0, 1)).map(([, f]) => f(r)).filter(Boolean).join(", ") + (r.stopped ? " (stopped)" : "");
const policies = [...new Set(runs.map(r => r.policy))];
const lineOf = r => ({ color: color(policies.length > 1 ? policies.indexOf(r.policy) : runs.indexOf(r)), dash: dash(policies.length > 1 ? 8 * sameBefore(r) : runs.indexOf(r)) });
const sameBefore = r => runs.slice(0, runs.indexOf(r)).filter(o => o.policy === r.policy).length;

// A condition is everything that distinguishes runs except the policy. Policies are compared under one condition at a time.
// If the report was joined from several reports, all runs are compared.
const conditions = data.kind === "compared" ? [] : varying.filter(([k]) => k !== "policy");
const condition = r => conditions.map(([, f]) => f(r)).filter(Boolean).join(", ");

function panel(title, note, ...content) {
  return el("div", { class: "panel" }, el("h3", { text: title }), note ? el("p", { class: "soft", text: note }) : null, ...content);
}
function section(title, ...content) {
  page.append(el("h2", { text: title }), ...content);
}

// --- head ------------------------------------------------------------------

function head() {
  const w = data.workload;
  page.append(el("h1", {}, w.name, el("span", { class: "badge", text: data.kind }), data.interrupted ? el("span", { class: "badge", text: "interrupted: what was done by then" }) : null));
  page.append(el("p", { class: "soft", text: `${w.requests.toLocaleString("en")} requests, ${count(w.prompt_tokens)} prompt and ${count(w.output_tokens)} output tokens over ${seconds(w.span_s)}` }));
  page.append(el("pre", { text: data.command }));
}

// --- table -----------------------------------------------------------------

// The share of the answered requests is shown only if requests failed or were rejected. Old reports do not have it.
const answeredDiffers = s => s != null && s.answered_share > s.share;
const sloHead = s => `≤ ${ms(s.ttft_ms)}${s.tpot_ms ? ", " + ms(s.tpot_ms) : ""}`;

// The share of the requests that were divided into a prefill leg and a decode leg; null if none could be.
const divided = r => {
  const t = r.transfers || {}, all = Object.values(t.bypassed || {}).reduce((a, n) => a + n, t.divided || 0);
  return all ? percent((t.divided || 0) / all) : null;
};

function summary() {
  const lat = (k, q) => r => r[k] && r[k].count ? r[k][q] : null;
  const columns = [
    ["run", null, label],
    ...(runs.some(divided) ? [["divided", null, divided, v => v]] : []),
    ["hit", "max", r => r.hit_rate, percent],
    ["TTFT mean", "min", lat("ttft_ms", "mean"), ms], ["p50", "min", lat("ttft_ms", "p50"), ms], ["p90", "min", lat("ttft_ms", "p90"), ms], ["p99", "min", lat("ttft_ms", "p99"), ms],
    ["ITL p50", "min", lat("itl_ms", "p50"), ms], ["p99", "min", lat("itl_ms", "p99"), ms],
    ["E2E mean", "min", lat("e2e_ms", "mean"), ms], ["p99", "min", lat("e2e_ms", "p99"), ms],
    ...(runs[0].slo || []).flatMap((s, i) => [
      [sloHead(s), "max", r => r.slo[i]?.share, percent],
      ...(runs.some(r => answeredDiffers(r.slo[i])) ? [["of answered", "max", r => r.slo[i]?.answered_share || null, percent]] : []),
    ]),
    ["out tok/s", "max", r => r.output_tokens_per_s, v => v.toFixed(0)],
    ...(runs.some(r => r.requests.failed + r.requests.rejected) ? [["failed", null, r => r.requests.failed + r.requests.rejected, v => v]] : []),
  ];
  const t = el("table", {}, el("tr", {}, ...columns.map(c => el("th", { text: c[0] }))));
  const rivals = r => runs.filter(o => condition(o) === condition(r));
  const best = (r, [, which, get]) => which && rivals(r).length > 1 ? Math[which](...rivals(r).map(get).filter(v => v != null)) : NaN;
  for (const r of runs) {
    t.append(el("tr", {}, ...columns.map((column, i) => {
      const [, , get, fmt] = column, v = get(r);
      return el("td", { class: i > 0 && v === best(r, column) ? "best" : "", text: v == null ? "–" : fmt ? fmt(v) : v });
    })));
  }
  section("Results", el("div", { class: "panel scroll" }, t));
}

// --- comparison ------------------------------------------------------------

function comparison() {
  const box = el("div", {}), of = c => runs.filter(r => condition(r) === c);
  const draw = list => box.replaceChildren(...(list.length > 1 ? [percentiles(list)] : []), distributions(list));
  const rivals = [...new Set(runs.map(condition))].filter(c => of(c).length > 1);
  if (policies.length === 1 || rivals.length === 0 || rivals.length === 1 && runs.length === of(rivals[0]).length) {
    draw(runs.slice(0, 16));
    return section(runs.length > 1 ? "Side by side" : "Distributions", box);
  }
  const middle = rivals.length >> 1;
  const choose = el("select", { "aria-label": "condition" }, ...rivals.map(c => el("option", { text: c })));
  choose.selectedIndex = middle;
  choose.addEventListener("change", () => draw(of(choose.value)));
  section("Policies side by side", el("p", {}, choose), box);
  draw(of(rivals[middle]));
}

const inGroup = list => r => policies.length > 1 && new Set(list.map(o => o.policy)).size === list.length ? r.policy : label(r);

function percentiles(list) {
  const grid = el("div", { class: "grid" }), name = inGroup(list), labels = list.map(name), colors = list.map(r => lineOf(r).color);
  grid.append(panel("Hit rate", "prompt tokens that were not computed", bars({ labels, colors, groups: [{ name: "", values: list.map(r => 100 * r.hit_rate) }], yfmt: v => v.toFixed(1) + " %", ytick: v => v.toFixed(0) + " %", values: true })));
  const grades = [["p50", 0.35], ["p90", 0.65], ["p99", 1]];
  for (const [title, key] of [["Time to first token", "ttft_ms"], ["Time between tokens", "itl_ms"], ["End to end", "e2e_ms"]]) {
    if (!list.some(r => r[key].count)) continue;
    grid.append(panel(title, "percentiles, logarithmic",
      bars({ labels, colors, ylog: true, yfmt: ms, groups: grades.map(([q, opacity]) => ({ name: q, opacity, values: list.map(r => r[key][q]) })) }),
      legend(grades.map(([name, opacity]) => ({ name, opacity, color: "var(--soft)" })), true)));
  }
  return grid;
}

function distributions(list) {
  const grid = el("div", { class: "grid" }), name = inGroup(list);
  grid.style.marginTop = "14px";
  for (const [title, key] of [["Time to first token", "ttft_ms"], ["Time between tokens", "itl_ms"], ["End to end", "e2e_ms"]]) {
    const series = list.filter(r => r[key].cdf).map(r => ({ name: name(r), color: lineOf(r).color, dash: name(r) === r.policy ? dash(policies.indexOf(r.policy)) : lineOf(r).dash, points: r[key].cdf.map(([v, q]) => [Math.max(v, 0.1), q]) }));
    if (!series.length) continue;
    grid.append(panel(title + ", distribution", "share of values up to", lines({ series, xlog: true, y0: 0, y1: 1, xfmt: ms, yfmt: percent, ytick: whole }), legend(series)));
  }
  return grid;
}

// knee returns the rate at which the share falls below 90 %. It interpolates between the last rate with 90 % and the next rate.
function knee(points) {
  for (let i = 0; i + 1 < points.length; i++) {
    const [x0, y0] = points[i], [x1, y1] = points[i + 1];
    if (y0 >= 0.9 && y1 < 0.9) return [x0 + (x1 - x0) * (y0 - 0.9) / (y0 - y1), 0.9];
  }
  return null;
}

function load() {
  const varied = varying.map(v => v[0]);
  const axis = varied.includes("rate") ? ["rate", "speed-up of the arrivals", v => +v.toFixed(2) + "×"] : varied.includes("workers") ? ["workers", "workers", v => +v.toFixed(1) + ""] : null;
  if (!axis) return;
  const grid = el("div", { class: "grid" });
  (runs[0].slo || []).forEach((s, i) => {
    const series = policies.map((p, k) => {
      const by = new Map();
      for (const r of runs.filter(r => r.policy === p && r.slo[i])) by.set(r[axis[0]], [...(by.get(r[axis[0]]) || []), r.slo[i].share]);
      const points = [...by].map(([x, v]) => [x, v.reduce((a, b) => a + b) / v.length]).sort((a, b) => a[0] - b[0]);
      const at = axis[0] === "rate" ? knee(points) : null;
      return { name: p, color: color(k), dash: dash(k), points, marks: at ? [[...at, `${p} ${axis[2](at[0])}`, 0]] : [] };
    }).filter(s => s.points.length > 1);
    series.filter(s => s.marks.length).sort((a, b) => a.marks[0][0] - b.marks[0][0]).forEach((s, row) => { s.marks[0][3] = row; });
    if (!series.length) return;
    grid.append(panel(`Within ${ms(s.ttft_ms)} to the first token${s.tpot_ms ? ` and ${ms(s.tpot_ms)} a token` : ""}`, "share of requests; circles mark where a policy falls below 90 %",
      lines({ series, dots: true, y0: 0, y1: 1, xfmt: axis[2], yfmt: percent, ytick: whole, xlabel: axis[1], rules: [{ y: 0.9, text: "90 %" }] }), legend(series)));
  });
  const series = policies.map((p, k) => ({ name: p, color: color(k), dash: dash(k), points: runs.filter(r => r.policy === p).map(r => [r[axis[0]], 100 * r.hit_rate]).sort((a, b) => a[0] - b[0]) }));
  grid.append(panel("Hit rate", null, lines({ series, dots: true, xfmt: axis[2], yfmt: v => v.toFixed(0) + " %", xlabel: axis[1] }), legend(series)));
  section("Against load", grid);
}

// --- one run ---------------------------------------------------------------

function details() {
  const box = el("div", {});
  const choose = el("select", { "aria-label": "run" }, ...runs.map((r, i) => el("option", { value: i, text: label(r) })));
  choose.addEventListener("change", () => { painted.length = 0; box.replaceChildren(...detail(runs[choose.value])); });
  section("One run in time", el("p", {}, choose), box);
  box.append(...detail(runs[0]));
}

function detail(r) {
  const grid = el("div", { class: "grid" }), s = r.series, wide = p => { p.classList.add("wide"); return p; };
  const over = values => values.map((v, i) => [(i + 0.5) * s.step_s, v < 0 ? null : v]);
  const names = r.per_worker.map(w => w.name);
  const time = (title, note, values, fmt, i) => panel(title, note, lines({ series: [{ name: title, color: color(i), points: over(values) }], xfmt: seconds, clock: true, yfmt: fmt, ytick: fmt === percent ? whole : fmt, x0: 0, x1: s.step_s * values.length }));
  grid.append(time("Arrivals", "requests a second", s.arrivals_per_s, count, 0));
  grid.append(time("Hit rate", "of requests, at their first token", s.hit_rate, percent, 2));
  grid.append(time("Time to first token", "mean", s.ttft_ms, ms, 1));
  grid.append(time("Output", "tokens a second", s.output_tokens_per_s, count, 5));
  if (new Set(s.workers_ready).size > 1) grid.append(time("Workers ready", null, s.workers_ready, count, 3));
  if (s.running && s.running.length) {
    const requests = s.running.map((v, i) => v.map((x, k) => x + s.waiting[i][k])), most = Math.max(...requests.flat());
    const few = r.per_worker.length > s.running.length ? `; the first ${s.running.length} of ${r.per_worker.length} workers` : "";
    if (most > 0) grid.append(wide(panel("Requests on each worker", `running and waiting; strongest is ${count(most)}${few}`, heat({ title: "requests", rows: requests, names, step: s.step_s, fmt: v => count(v) + " requests" }))));
    const fullest = Math.max(...s.kv.flat());
    if (fullest > 0) grid.append(wide(panel("KV in use on each worker", `share of the cache that running requests hold; strongest is ${percent(fullest)}${few}`, heat({ title: "KV", rows: s.kv, names, step: s.step_s, fmt: percent }))));
  }
  if (r.per_worker.length > 1) {
    grid.append(panel("Requests by worker", `coefficient of variation ${r.balance.requests_cv.toFixed(2)}, busiest ${r.balance.requests_max_mean.toFixed(2)} × mean`, bars({ labels: names, yfmt: count, groups: [{ name: "requests", color: "var(--s0)", values: r.per_worker.map(w => w.requests) }] })));
    grid.append(panel("Prompt tokens computed by worker", `coefficient of variation ${r.balance.computed_cv.toFixed(2)}, busiest ${r.balance.computed_max_mean.toFixed(2)} × mean`, bars({ labels: names, yfmt: count, groups: [{ name: "tokens", color: "var(--s5)", values: r.per_worker.map(w => w.computed_tokens) }] })));
  }
  if (r.samples && r.samples.length) grid.append(wide(timeline(r)));
  if (r.stages && r.stages.length) grid.append(wide(stages(r)));
  if (r.per_worker.length) grid.append(wide(workers(r)));
  grid.append(wide(transfers(r)));
  return [grid];
}

function rows(heads, lines) {
  return el("div", { class: "scroll" }, el("table", {}, el("tr", {}, ...heads.map(h => el("th", { text: h }))), ...lines.map(l => el("tr", {}, ...l.map(v => el("td", { text: v }))))));
}

function stages(r) {
  const slos = r.stages[0].slo || [], differs = slos.map((_, i) => r.stages.some(s => answeredDiffers(s.slo[i])));
  return panel("Stages", null, rows(["stage", "requests", "hit", "out tok/s", "TTFT mean", "p90", "p99", "TPOT p50", ...slos.flatMap((s, i) => [sloHead(s), ...(differs[i] ? ["of answered"] : [])])],
    r.stages.map(s => [s.name, s.requests, percent(s.hit_rate), s.output_tokens_per_s.toFixed(0), ms(s.ttft_ms.mean), ms(s.ttft_ms.p90), ms(s.ttft_ms.p99), ms(s.tpot_ms.p50),
      ...slos.flatMap((_, i) => [percent(s.slo[i].share), ...(differs[i] ? [percent(s.slo[i].answered_share)] : [])])])));
}

function workers(r) {
  const most = 64, list = r.per_worker.slice(0, most);
  return panel("Workers", r.per_worker.length > most ? `the first ${most} of ${r.per_worker.length}` : null,
    rows(["worker", "requests", "hit", "computed", "output", "busy", "running", "waiting", "KV mean", "KV max", "preempted", "restarts"],
      list.map(w => [w.name, w.requests, percent(w.hit_rate), count(w.computed_tokens), count(w.output_tokens), percent(w.busy), w.running_mean.toFixed(1), w.waiting_mean.toFixed(1), percent(w.kv_mean), percent(w.kv_max), w.preemptions, w.restarts])));
}

function transfers(r) {
  const t = r.transfers, lines = [
    ...(r.profile ? [["tokens read back from host memory", count(t.loaded_tokens)], ["blocks evicted", count(t.evicted_blocks)],
      ["KV events applied by routers", count(t.events_applied)], ["KV events lost", count(t.events_lost)]] : []), // live engines do not report these figures
    ["requests retried on another worker", r.requests.retried], ["failed", r.requests.failed], ["rejected", r.requests.rejected],
  ];
  if (t.handovers) lines.push(["KV sent from worker to worker", `${count(t.handover_tokens)} tokens in ${count(t.handovers)} transfers, p50 ${ms(t.handover_ms.p50)}`]);
  return panel("Transfers and events", null, rows(["what", "how much"], lines));
}

// --- timeline --------------------------------------------------------------

// timeline draws single requests, in one lane for each worker. The wheel zooms, dragging moves, a double click shows all.
function timeline(r) {
  const list = [...r.samples].sort((a, b) => a.a - b.a), lanes = Math.max(0, ...list.map(s => s.w)) + 1; // s.w is -1 if the worker is not known
  const bar = lanes > 16 ? 2 : 4, gap = 8, left = 84, bottom = 18;
  const depth = Array(lanes).fill(0), free = Array.from({ length: lanes }, () => []);
  for (const s of list) { // each request takes the first free row of its lane
    const f = free[Math.max(s.w, 0)];
    let row = f.findIndex(end => end <= s.a);
    if (row < 0 || row >= 40) row = Math.min(f.length, 39);
    f[row] = s.e; s.row = row;
    depth[Math.max(s.w, 0)] = Math.max(depth[Math.max(s.w, 0)], row + 1);
  }
  const top = []; let height = 0;
  for (const d of depth) { top.push(height); height += Math.max(d, 1) * bar + gap; }
  const end = Math.max(...list.map(s => s.e)); let from = 0, to = end;
  const paint = (g, width) => {
    const x = t => left + (t - from) / (to - from) * (width - left);
    g.clearRect(0, 0, width, height + bottom);
    g.font = "11px system-ui, sans-serif";
    const wait = css("--wait"), a = css("--heat0").split(",").map(Number), b = css("--heat1").split(",").map(Number);
    g.save(); g.beginPath(); g.rect(left, 0, width - left, height); g.clip();
    for (const s of list) {
      if (s.e < from || s.a > to) continue;
      const y = top[Math.max(s.w, 0)] + s.row * bar, share = 0.25 + 0.75 * (s.p ? s.c / s.p : 0);
      g.fillStyle = wait; g.fillRect(x(s.a), y, Math.max(x(s.f) - x(s.a), 0.5), bar - 0.6);
      g.fillStyle = `rgb(${a.map((v, j) => Math.round(v + (b[j] - v) * share)).join(",")})`;
      g.fillRect(x(s.f), y, Math.max(x(s.e) - x(s.f), 0.5), bar - 0.6);
    }
    g.restore();
    g.fillStyle = css("--soft"); g.textAlign = "right";
    if (lanes <= 40) for (let i = 0; i < lanes; i++) g.fillText(r.per_worker[i]?.name || "", left - 6, top[i] + 9);
    const scale = linear(from, to, left, width, true);
    for (const t of scale.ticks) { g.textAlign = scale(t) > width - 24 ? "right" : "center"; g.fillText(seconds(t), scale(t), height + 13); }
  };
  const c = canvas(height + bottom, paint);
  const again = painted[painted.length - 1];
  const at = e => { const box = c.getBoundingClientRect(); return from + (e.clientX - box.left - left) / (box.width - left) * (to - from); };
  const view = (a, b) => { const span = Math.min(Math.max(b - a, end / 1e4), end); from = Math.min(Math.max(a, 0), end - span); to = from + span; again(); };
  c.style.cursor = "grab";
  c.addEventListener("wheel", e => { e.preventDefault(); const t = at(e), k = Math.exp(Math.sign(e.deltaY) * 0.25); view(t - (t - from) * k, t + (to - t) * k); }, { passive: false });
  c.addEventListener("dblclick", () => view(0, end));
  let drag = null;
  c.addEventListener("pointerdown", e => { drag = [e.clientX, from, to]; c.setPointerCapture(e.pointerId); });
  c.addEventListener("pointerup", () => { drag = null; });
  c.addEventListener("pointermove", e => {
    if (drag) { const d = (e.clientX - drag[0]) / (c.clientWidth - left) * (drag[2] - drag[1]); return view(drag[1] - d, drag[2] - d); }
    const t = at(e), y = e.clientY - c.getBoundingClientRect().top;
    const s = list.find(s => s.a <= t && s.e >= t && y >= top[Math.max(s.w, 0)] + s.row * bar && y < top[Math.max(s.w, 0)] + (s.row + 1) * bar);
    s ? show(e, `${r.per_worker[s.w]?.name || ""}\n${s.p.toLocaleString("en")} prompt tokens, ${percent(s.p ? s.c / s.p : 0)} cached\nfirst token after ${ms(1000 * (s.f - s.a))}, end after ${ms(1000 * (s.e - s.a))}`) : hide();
  });
  c.addEventListener("pointerleave", hide);
  return panel("Requests", `${list.length.toLocaleString("en")} of ${r.requests.answered.toLocaleString("en")}, evenly drawn, by worker. Wheel zooms, drag moves, double click shows all.`, c,
    legend([{ name: "until the first token", color: "var(--wait)" }, { name: "answering, nothing was cached", color: "rgba(var(--heat1), 0.25)" }, { name: "answering, all was cached", color: "rgb(var(--heat1))" }], true));
}

// --- all of it -------------------------------------------------------------

head();
if (runs.length) {
  summary();
  comparison();
  load();
  details();
}
section("Assumptions", el("div", { class: "panel" }, el("ul", {}, ...data.assumptions.map(a => el("li", { text: a }))),
  el("p", { class: "soft", text: `warmpath ${data.version}, ${data.schema}` })));

// The report's script: it draws what the page's data say. Text from runs is only ever set as text.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const $ = (id) => document.getElementById(id);
  const SHOWN = 6; // candidates drawn at first
  const POINTS = 1200; // of the sorted changes that are drawn
  const DASHES = ["solid", "dash", "dashdot", "longdash"];

  // ---------------------------------------------------------------- small things

  /** An element with properties, classes and children; strings become text, never HTML. */
  function make(tag, options = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(options)) {
      if (name === "class") element.className = value;
      else if (name === "style") element.style.cssText = value;
      else element.setAttribute(name, value);
    }
    element.append(...children);
    return element;
  }

  /** Plotly reads some HTML in its texts: here it is to be shown as it stands. */
  const literal = (text) =>
    String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const lines = (text) => literal(text).replace(/\n/g, "<br>");
  const shortened = (text, most = 40) => (text.length > most ? text.slice(0, most - 1) + "…" : text);
  const count = (number) => number.toLocaleString("en");
  const signed = (value, digits = 4) =>
    (value > 0 ? "+" : value < 0 ? "−" : "±") + Math.abs(value).toFixed(digits);
  const variable = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const color = (candidate) => variable(`--c${candidate % 10}`);
  const dash = (candidate) => DASHES[Math.floor(candidate / 10) % DASHES.length];

  function faded(hex, opacity) {
    const n = parseInt(hex.slice(1), 16);
    return `rgba(${n >> 16}, ${(n >> 8) & 255}, ${n & 255}, ${opacity})`;
  }

  function unpack(text, Kind) {
    const binary = atob(text);
    const bytes = new Uint8Array(binary.length);
    for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
    return new Kind(bytes.buffer);
  }

  function options(select, pairs, chosen) {
    select.replaceChildren(
      ...pairs.map(([value, text]) => {
        const option = make("option", { value }, text);
        option.selected = String(value) === String(chosen);
        return option;
      })
    );
  }

  /** Things of candidates in the order of the table, those that are not compared last. */
  function byOrder(things) {
    const place = new Map(data.order.map((candidate, i) => [candidate, i]));
    return [...things].sort((a, b) => (place.get(a.candidate) ?? 1e9) - (place.get(b.candidate) ?? 1e9));
  }

  function colorSwatches() {
    for (const swatch of document.querySelectorAll(".swatch[data-candidate]"))
      swatch.style.background = color(Number(swatch.dataset.candidate));
  }

  // ---------------------------------------------------------------- charts

  let inspecting = false; // whether there are lists to show
  const drawn = new Map(); // chart -> how to draw it again, in the colors of the theme

  function layout(titles, more = {}) {
    const axis = {
      gridcolor: variable("--grid"), zerolinecolor: variable("--soft"), linecolor: variable("--line"),
      tickfont: { size: 12 }, automargin: true, zeroline: false,
    };
    const narrow = window.innerWidth < 600;
    return {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: "system-ui, -apple-system, Segoe UI, Roboto, sans-serif", color: variable("--soft"), size: 13 },
      margin: { l: narrow ? 44 : 56, r: 12, t: 14, b: 46 }, showlegend: false, hovermode: "closest", dragmode: false,
      hoverlabel: { bgcolor: variable("--paper"), bordercolor: variable("--line"), font: { color: variable("--ink") }, namelength: 40 },
      ...more,
      xaxis: { ...axis, title: { text: lines(titles[0]), standoff: 8 }, ...more.xaxis },
      yaxis: { ...axis, title: { text: lines(titles[1]), standoff: 6 }, ...more.yaxis },
    };
  }

  /** Draw a chart, with a text that says what it shows; `how` gives [traces, layout]. */
  function draw(id, how, summary) {
    const place = $(id);
    drawn.set(id, how);
    place.removeAttribute("data-empty");
    place.setAttribute("aria-label", summary);
    $(`${id.replace("-chart", "")}-summary`).textContent = summary;
    const [traces, shape] = how();
    if (place.firstChild && place.firstChild.nodeType === Node.TEXT_NODE) place.textContent = "";
    return Plotly.react(place, traces, shape, { responsive: true, displayModeBar: false, doubleClick: false });
  }

  function empty(id, why) {
    const place = $(id);
    drawn.delete(id);
    if (place.classList.contains("js-plotly-plot")) Plotly.purge(place);
    place.setAttribute("data-empty", "");
    place.setAttribute("aria-label", why);
    place.textContent = why;
    $(`${id.replace("-chart", "")}-summary`).textContent = "";
  }

  function redraw() {
    colorSwatches();
    for (const [id, how] of drawn) {
      const [traces, shape] = how();
      Plotly.react($(id), traces, shape, { responsive: true, displayModeBar: false, doubleClick: false });
    }
    if (inspecting) showLists();
  }

  // ---------------------------------------------------------------- light and dark

  function theme(dark, keep) {
    root.dataset.theme = dark ? "dark" : "light";
    $("theme").setAttribute("aria-pressed", String(dark));
    if (keep) try { localStorage.setItem("rankgrad-theme", root.dataset.theme); } catch { /* not allowed: not kept */ }
    redraw();
  }

  function startTheme() {
    const system = matchMedia("(prefers-color-scheme: dark)");
    let kept = null;
    try { kept = localStorage.getItem("rankgrad-theme"); } catch { /* not allowed */ }
    theme(kept ? kept === "dark" : system.matches, false);
    system.addEventListener("change", (event) => theme(event.matches, false));
    $("theme").addEventListener("click", () => theme(root.dataset.theme !== "dark", true));
  }

  // ---------------------------------------------------------------- tables that sort

  function value(row, column) {
    const cell = row.cells[column];
    const text = cell.dataset.value ?? cell.textContent.trim();
    const number = Number(text.replace(/,/g, ""));
    return text === "" || text === "–" ? null : Number.isNaN(number) ? text : number;
  }

  function sortBy(table, head, direction) {
    const column = head.cellIndex;
    const sign = direction === "ascending" ? 1 : -1;
    const rows = [...table.tBodies[0].rows].map((row) => [row, value(row, column)]);
    rows.sort(([, a], [, b]) => {
      if (a === null || b === null) return (a === null) - (b === null); // gaps stay below
      if (typeof a === "number" && typeof b === "number") return sign * (a - b);
      return sign * String(a).localeCompare(String(b), "en", { numeric: true });
    });
    table.tBodies[0].append(...rows.map(([row]) => row));
    for (const other of table.tHead.rows[0].cells) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", direction);
    $("said").textContent = `Sorted by ${head.textContent.trim()}, ${direction}`;
  }

  function startTables() {
    for (const table of document.querySelectorAll("table.sortable"))
      for (const head of table.tHead.rows[0].cells)
        head.querySelector("button").addEventListener("click", () => {
          const now = head.getAttribute("aria-sort");
          const first = head.dataset.kind === "number" ? "descending" : "ascending";
          const second = first === "ascending" ? "descending" : "ascending";
          sortBy(table, head, now === first ? second : first);
        });
    const main = document.querySelector("#comparison th.main");
    if (main) main.setAttribute("aria-sort", data.lower[data.primary] ? "ascending" : "descending");
  }

  // ---------------------------------------------------------------- learning curves

  const visible = new Set();

  /** A band and its mean; dotted from the epoch on at which the first run had stopped. */
  function bandTraces(line, candidate, ends, name, style = {}) {
    const tint = style.color ?? color(candidate);
    const shape = style.dash ?? dash(candidate);
    const many = line.low.some((low, i) => low !== line.high[i]);
    const traces = [];
    if (many)
      traces.push({
        x: [...line.epoch, ...line.epoch.slice().reverse()], y: [...line.high, ...line.low.slice().reverse()],
        fill: "toself", fillcolor: faded(tint, style.opacity ?? 0.15), line: { width: 0 }, mode: "lines", hoverinfo: "skip", type: "scatter",
      });
    const split = line.epoch.filter((epoch) => epoch <= ends).length;
    const hover = `<b>${literal(shortened(name))}</b><br>${style.unit ?? "epoch"} %{x}: %{y:.4f}<extra></extra>`;
    const common = { type: "scatter", mode: line.epoch.length === 1 ? "markers" : "lines", hovertemplate: hover };
    traces.push({ ...common, x: line.epoch.slice(0, split), y: line.mean.slice(0, split), line: { color: tint, width: 2.4, dash: shape }, marker: { color: tint } });
    if (split < line.epoch.length)
      traces.push({ ...common, x: line.epoch.slice(split - 1), y: line.mean.slice(split - 1), line: { color: tint, width: 1.6, dash: "dot" } });
    return traces;
  }

  /** Networks and trees in charts of their own: hundreds of trees would make a few epochs a smear. */
  function showCurves() {
    const { series } = data.curves;
    const trees = series.filter((own) => own.trees), networks = series.filter((own) => !own.trees);
    if (!networks.length) return showPanel("curve-chart", "tree", trees);
    showPanel("curve-chart", "epoch", networks);
    const some = trees.some((own) => visible.has(own.candidate) && own.lines[$("curve-metric").value]);
    $("tree-figure").hidden = !some;
    if (some) showPanel("tree-chart", "tree", trees);
  }

  function showPanel(id, unit, all) {
    const metric = $("curve-metric").value;
    const series = byOrder(all).filter((own) => visible.has(own.candidate) && own.lines[metric]);
    const label = metric === "loss" ? "training loss" : `validation ${metric}`;
    const lower = metric === "loss";
    const best = series.map((own) => {
      const means = own.lines[metric].mean;
      let at = 0;
      means.forEach((v, i) => { if (v !== null && (lower ? v < means[at] : v > means[at])) at = i; });
      return `${data.candidates[own.candidate]} ${means[at]?.toFixed(4)} at ${unit} ${own.lines[metric].epoch[at]}`;
    });
    const said = best.slice(0, 8).join("; ") + (best.length > 8 ? "; …" : "");
    draw(
      id,
      () => [
        series.flatMap((own) => bandTraces(own.lines[metric], own.candidate, own.ends, data.candidates[own.candidate], { unit, opacity: own.over === "folds" ? 0.06 : 0.16 })),
        layout([unit, label]),
      ],
      series.length ? `${label}, ${lower ? "lowest" : "highest"} mean: ${said}.` : "No candidate is chosen."
    );
  }

  function startCurves() {
    const { metrics, series } = data.curves;
    if (!series.length) {
      $("curve-metric").closest(".controls").remove();
      return empty("curve-chart", "No run has learning curves; scores from elsewhere have none.");
    }
    const first = data.metrics[data.primary];
    options($("curve-metric"), [...metrics.map((m) => [m, m]), ["loss", "training loss (not comparable between losses)"]], metrics.includes(first) ? first : metrics[0] ?? "loss");
    const sorted = byOrder(series);
    sorted.slice(0, SHOWN).forEach((own) => visible.add(own.candidate));
    for (const own of sorted) {
      const chip = make("button", { type: "button", class: "chip", "aria-pressed": String(visible.has(own.candidate)) },
        make("span", { class: "swatch", "data-candidate": own.candidate, "aria-hidden": "true" }), data.candidates[own.candidate]);
      chip.addEventListener("click", () => {
        const on = !visible.has(own.candidate);
        if (on) visible.add(own.candidate); else visible.delete(own.candidate);
        chip.setAttribute("aria-pressed", String(on));
        showCurves();
      });
      $("curve-chips").append(chip);
    }
    $("curve-metric").addEventListener("change", showCurves);
    showCurves();
  }

  // ---------------------------------------------------------------- relaxed and exact

  function pathTraces(own) {
    const tint = color(own.candidate), name = literal(shortened(data.candidates[own.candidate]));
    const last = own.relaxed.mean.length - 1;
    const size = own.relaxed.mean.map((_, i) => (i === last ? 12 : 4));
    return {
      type: "scatter", mode: "lines+markers", x: own.relaxed.mean, y: own.exact.mean, customdata: own.relaxed.epoch,
      line: { color: faded(tint, 0.55), width: 1.6 }, marker: { color: tint, size },
      hovertemplate: `<b>${name}</b><br>epoch %{customdata}<br>relaxed %{x:.4f}, exact %{y:.4f}<extra></extra>`,
    };
  }

  function showRelaxed() {
    const own = data.relaxed.find((one) => String(one.candidate) === $("relaxed-candidate").value);
    const last = (values) => values[values.length - 1];
    const ends = Math.max(...own.relaxed.epoch);
    draw(
      "relaxed-epochs",
      () => [
        [
          ...bandTraces(own.relaxed, own.candidate, ends, "relaxed, training", { color: variable("--loss"), dash: "dash" }),
          ...bandTraces(own.exact, own.candidate, ends, `exact ${own.exact_metric}, validation`, { color: variable("--win"), dash: "solid" }),
        ],
        layout(["epoch", `relaxed ${own.metric} (training)\nexact ${own.exact_metric} (validation)`]),
      ],
      `${data.candidates[own.candidate]}: relaxed ${own.metric} in training (dashed, orange) went from ${own.relaxed.mean[0]?.toFixed(4)} to ${last(own.relaxed.mean)?.toFixed(4)}; exact ${own.exact_metric} in validation (solid, blue) from ${own.exact.mean[0]?.toFixed(4)} to ${last(own.exact.mean)?.toFixed(4)}.`
    );
  }

  function startRelaxed() {
    if (!data.relaxed.length) {
      $("relaxed-controls").remove();
      empty("relaxed-path", "None of the losses is a relaxed metric, or none has learning curves.");
      $("relaxed-epochs").closest("figure").remove();
      return;
    }
    const sorted = byOrder(data.relaxed);
    const most = sorted.slice(0, 12);
    const names = most.map((own) => `${data.candidates[own.candidate]} (relaxed ${own.metric}, exact ${own.exact_metric})`).join(", ");
    const only = (kind, other) => { // the metric that all have, or words for several
      const kinds = new Set(most.map((own) => own[kind]));
      return kinds.size === 1 ? [...kinds][0] : other;
    };
    draw(
      "relaxed-path",
      () => [most.map(pathTraces), layout([`relaxed ${only("metric", "value")} (training)`, `exact ${only("exact_metric", "metric")} (validation)`])],
      `The way of ${most.length === 1 ? "one loss" : `${most.length} losses`} through training: ${names}.`
    );
    $("relaxed-path-summary").append(" ", ...most.map((own) => make("span", { class: "key" },
      make("span", { class: "swatch", "data-candidate": own.candidate, "aria-hidden": "true" }), ` ${data.candidates[own.candidate]}`)));
    options($("relaxed-candidate"), sorted.map((own) => [own.candidate, data.candidates[own.candidate]]), sorted[0].candidate);
    $("relaxed-candidate").addEventListener("change", showRelaxed);
    showRelaxed();
  }

  // ---------------------------------------------------------------- wins and losses

  const pair = { a: null, b: null };
  const unpacked = new Map();

  /** The values of a candidate's queries for one packed metric; NaN where a query is left out. */
  function values(packed, candidate) {
    const key = `${packed.metric}/${candidate}`;
    if (!unpacked.has(key)) {
      const text = packed.values[candidate];
      unpacked.set(key, text === undefined ? null : unpack(text, Int16Array));
    }
    return unpacked.get(key);
  }

  /** Steps by which A is better than B on each query, with the rows; both of 16 bits, so exact. */
  function differences(packed) {
    const a = values(packed, pair.a), b = values(packed, pair.b);
    if (!a || !b) return null;
    const sign = data.lower[packed.metric] ? -1 : 1;
    const found = [];
    for (let row = 0; row < a.length; row++)
      if (a[row] !== -32768 && b[row] !== -32768) found.push([row, sign * (a[row] - b[row]) * packed.step]);
    return found;
  }

  function tally(found, metric) {
    const wins = found.filter(([, d]) => d > 0).length, losses = found.filter(([, d]) => d < 0).length;
    const ties = found.length - wins - losses;
    const mean = found.reduce((sum, [, d]) => sum + d, 0) / Math.max(1, found.length);
    const part = (number) => `flex: ${number} 0 0`;
    const [nameA, nameB] = [data.candidates[pair.a], data.candidates[pair.b]];
    const word = (kind, number, text) =>
      make("span", {}, make("span", { class: `key ${kind}`, "aria-hidden": "true" }), make("b", {}, count(number)), ` ${text}`);
    $("tally").replaceChildren(
      make("div", { class: "bar", "aria-hidden": "true" }, make("span", { class: "a", style: part(wins) }), make("span", { class: "t", style: part(ties) }), make("span", { class: "b", style: part(losses) })),
      make("div", { class: "words" }, word("a", wins, `better under A, ${nameA}`), word("t", ties, "the same"), word("b", losses, `better under B, ${nameB}`),
        make("span", {}, make("b", {}, signed(mean)), ` mean ${metric}, A against B${data.lower[data.metrics.indexOf(metric)] ? " (lower is better: + is A's advantage)" : ""}`))
    );
    return { wins, losses, ties, mean };
  }

  function showChanges() {
    const packed = data.changes.metrics.find((one) => String(one.metric) === $("changes-metric").value);
    const found = packed ? differences(packed) : null;
    if (!found || pair.a === pair.b) {
      const why = pair.a === pair.b ? "A and B are the same: choose two candidates." : "One of the two has no values of this metric.";
      $("tally").replaceChildren();
      empty("changes-sorted", why);
      return empty("changes-histogram", why);
    }
    const metric = data.metrics[packed.metric];
    const sums = tally(found, metric);
    found.sort((x, y) => y[1] - x[1]);
    const step = Math.max(1, (found.length - 1) / (POINTS - 1));
    const picked = [];
    for (let i = 0; i < found.length; i += step) picked.push(Math.round(i));
    if (found.length && picked[picked.length - 1] !== found.length - 1) picked.push(found.length - 1);
    const sample = data.changes.rows < data.changes.queries ? ` ${count(data.changes.rows)} of ${count(data.changes.queries)} queries, drawn at random.` : "";
    draw("changes-sorted", () => sortedTraces(found, picked, metric),
      `The queries sorted by the change in ${metric} from B to A; from ${found.length ? signed(found[0][1]) : 0} down to ${found.length ? signed(found[found.length - 1][1]) : 0}.${sample} Click one to inspect it, where its list is kept.`);
    const bins = histogram(found);
    draw("changes-histogram", () => histogramTraces(bins),
      `How many queries changed by how much in ${metric}; ${count(sums.ties)} queries without a change are not drawn. ${count(bins.large)} changed by more than half of the largest change.`);
    const place = $("changes-sorted");
    place.removeAllListeners?.("plotly_click");
    place.on("plotly_click", (event) => inspectRow(event.points[0].customdata[1]));
  }

  function sortedTraces(found, picked, metric) {
    const side = (keep, tint) => ({
      type: "scatter", mode: "lines", fill: "tozeroy", x: picked.map((i) => i + 1), y: picked.map((i) => (keep(found[i][1]) ? found[i][1] : 0)),
      customdata: picked.map((i) => [literal(data.changes.qids[found[i][0]]), found[i][0]]), line: { color: tint, width: 1.5, shape: "hv" }, fillcolor: faded(tint, 0.35),
      hovertemplate: "query %{customdata[0]}<br>change %{y:+.4f}<extra></extra>",
    });
    return [
      [side((d) => d > 0, variable("--win")), side((d) => d < 0, variable("--loss"))],
      layout(["queries, from A's wins to B's", `change in ${metric}`], { yaxis: { zeroline: true } }),
    ];
  }

  function histogram(found) {
    const most = found.reduce((m, [, d]) => Math.max(m, Math.abs(d)), 0) || 1;
    const half = 20, counts = new Array(2 * half).fill(0);
    let large = 0;
    for (const [, d] of found) {
      if (d === 0) continue;
      const at = Math.min(half - 1, Math.floor((Math.abs(d) / most) * half));
      counts[d > 0 ? half + at : half - 1 - at] += 1;
      if (Math.abs(d) > most / 2) large += 1;
    }
    return { counts, centers: counts.map((_, i) => ((i - half + 0.5) * most) / half), width: most / half, large };
  }

  function histogramTraces(bins) {
    return [
      [{
        type: "bar", x: bins.centers, y: bins.counts, width: bins.width * 0.92,
        marker: { color: bins.centers.map((c) => variable(c > 0 ? "--win" : "--loss")) },
        hovertemplate: "about %{x:+.3f}: %{y} queries<extra></extra>",
      }],
      layout(["B better ← change → A better", "queries"], { bargap: 0.05 }),
    ];
  }

  // ---------------------------------------------------------------- the query inspector

  const kept = data.lists;
  const arrays = kept.queries.length ? {
    items: unpack(kept.items, Uint32Array), scores: unpack(kept.scores, Float32Array),
    codes: unpack(kept.codes, Uint16Array), values: unpack(kept.values, Float32Array),
  } : null;

  const listMetric = () => Number($("changes-metric")?.value || data.primary);
  const slot = (candidate) => kept.candidates.indexOf(candidate);
  const valueOf = (candidate, query, metric) =>
    arrays.values[(slot(candidate) * kept.queries.length + query) * data.metrics.length + metric];

  function changeOf(query) {
    const metric = listMetric(), sign = data.lower[metric] ? -1 : 1;
    return sign * (valueOf(pair.a, query, metric) - valueOf(pair.b, query, metric));
  }

  const queryName = (query) => {
    const { qid, part } = kept.queries[query];
    return data.parts.length > 1 ? `${qid} (${data.parts[part]})` : qid;
  };

  function fillQueries() {
    const now = $("query").value;
    const wanted = $("query-search").value.trim().toLowerCase();
    const rows = kept.queries.map((_, query) => [query, changeOf(query)])
      .filter(([query]) => queryName(query).toLowerCase().includes(wanted))
      .sort(([, x], [, y]) => (Math.abs(y) || 0) - (Math.abs(x) || 0));
    const still = rows.some(([query]) => String(query) === now);
    options($("query"), rows.map(([query, change]) => [query, `${signed(change || 0, 3)}  ${queryName(query)}`]), still ? now : rows[0]?.[0]);
    showLists();
  }

  function ranking(candidate, query) {
    const top = kept.top, start = (slot(candidate) * kept.queries.length + query) * top;
    const rows = [];
    for (let i = start; i < start + Math.min(top, kept.queries[query].items); i++)
      rows.push({ item: arrays.items[i], score: arrays.scores[i], label: kept.labels[arrays.codes[i]] });
    return rows;
  }

  function grade(label, most) {
    const step = label <= 0 ? 0 : Math.max(1, Math.round((4 * label) / Math.max(most, 1e-9)));
    return make("span", { class: "grade", style: `background: var(--g${step}); color: var(--g${step}i)` }, String(label));
  }

  /** By how much an item stands higher or lower than in the other list. */
  function move(rank, other, top) {
    if (other === undefined)
      return make("span", { class: "up", title: `below rank ${top} in the other list` }, "▲ new");
    if (other === rank) return make("span", {}, "=");
    return make("span", { class: other > rank ? "up" : "down" }, `${other > rank ? "▲" : "▼"} ${Math.abs(other - rank)}`);
  }

  function listTable(letter, candidate, query, others, most) {
    const metric = listMetric(), rows = ranking(candidate, query);
    const value = valueOf(candidate, query, metric), seed = kept.seeds[slot(candidate)];
    const ranks = new Map(others.map((row, i) => [row.item, i + 1]));
    const heads = ["#", "label", "item", "score", `vs ${letter === "A" ? "B" : "A"}`];
    const body = rows.map((row, i) => make("tr", { "data-item": row.item },
      make("th", { scope: "row" }, String(i + 1)), make("td", {}, grade(row.label, most)), make("td", {}, String(row.item)),
      make("td", { class: "score" }, row.score.toPrecision(3)), make("td", { class: "move" }, move(i + 1, ranks.get(row.item), kept.top))));
    const caption = make("caption", {}, `${letter}: ${data.candidates[candidate]}`,
      make("small", {}, `${data.metrics[metric]} ${Number.isNaN(value) ? "left out" : value.toFixed(4)}${seed === null ? "" : `, seed ${seed}`}`));
    return make("table", {}, caption,
      make("thead", {}, make("tr", {}, ...heads.map((head, i) => make("th", { scope: "col", class: ["", "", "", "score", "move"][i] }, head)))),
      make("tbody", {}, ...body));
  }

  function showLists() {
    const chosen = $("query").value;
    if (chosen === "") {
      $("query-about").replaceChildren(make("p", { class: "about" }, "No query that is kept has this id."));
      for (const id of ["list-a", "list-b", "why"]) $(id).replaceChildren();
      return;
    }
    const query = Number(chosen), about = kept.queries[query];
    const most = kept.labels.reduce((high, label) => Math.max(high, label), 0);
    const inside = !about.items ? "none of any label" : about.labels.map(([label, number]) => `${count(number)} with label ${label}`).join(", ");
    $("query-about").replaceChildren(
      make("p", { class: "about" }, make("b", {}, `Query ${queryName(query)}`), `: ${count(about.items)} items, ${inside}. Change in ${data.metrics[listMetric()]} from B to A: ${signed(changeOf(query) || 0)}.`));
    $("list-a").replaceChildren(listTable("A", pair.a, query, ranking(pair.b, query), most));
    $("list-b").replaceChildren(listTable("B", pair.b, query, ranking(pair.a, query), most));
    showWhy(query);
  }

  // ---------------------------------------------------------------- why an item stands above another

  const asked = { candidate: null, upper: null, lower: null }; // what was last chosen by hand

  /** The pair to begin with: the first of which the less relevant item stands above. */
  function firstMistake(own, rows) {
    const label = (rank) => rows.find((row) => row.item === own.items[rank])?.label ?? 0;
    return own.pairs.find(([upper, lower]) => label(upper) < label(lower)) ?? own.pairs[0];
  }

  function choice(text, pairs, chosen, change) {
    const select = make("select", {});
    options(select, pairs, chosen);
    select.addEventListener("change", () => { change(select.value); showLists(); });
    return make("label", {}, `${text} `, select);
  }

  function showWhy(query) {
    const { queries, problems } = kept.reasons;
    const here = [...new Set([pair.a, pair.b])].filter((candidate) => queries[candidate]?.[query]?.pairs.length);
    if (!here.length) {
      const some = Object.keys(queries).length > 0;
      const why = some
        ? "Why an item stands above another is not explained for this query and these two."
        : "To see here why an item stands above another, keep explanations: rankgrad explain RUN DATA --save.";
      return $("why").replaceChildren(...[why, ...problems].map((text) => make("p", { class: "about" }, text)));
    }
    const candidate = here.includes(asked.candidate) ? asked.candidate : here[0];
    const own = queries[candidate][query], first = firstMistake(own, ranking(candidate, query));
    const upper = own.pairs.some((one) => one[0] === asked.upper) ? asked.upper : first[0];
    const shown = own.pairs.find((one) => one[0] === upper && one[1] === asked.lower)
      ?? (upper === first[0] ? first : own.pairs.find((one) => one[0] === upper));
    const named = (rank) => `item ${own.items[rank]} (rank ${rank + 1})`;
    const uppers = [...new Set(own.pairs.map((one) => one[0]))];
    const lowers = own.pairs.filter((one) => one[0] === upper).map((one) => one[1]);
    $("why").replaceChildren(
      make("h3", {}, "Why one item stands above another"),
      make("div", { class: "controls" },
        choice("In", here.map((one) => [one, `${one === pair.a ? "A" : "B"}: ${data.candidates[one]}`]), candidate, (value) => { asked.candidate = Number(value); }),
        choice("why", uppers.map((rank) => [rank, named(rank)]), upper, (value) => { asked.candidate = candidate; asked.upper = Number(value); }),
        choice("above", lowers.map((rank) => [rank, named(rank)]), shown[1], (value) => { asked.candidate = candidate; asked.upper = upper; asked.lower = Number(value); })),
      whyTable(candidate, own, shown));
  }

  function whyTable(candidate, own, [upper, lower, difference, baseline, parts]) {
    const rest = difference - baseline - parts.reduce((sum, [, value]) => sum + value, 0);
    const most = Math.max(...parts.map(([, value]) => Math.abs(value)), Math.abs(rest), Math.abs(baseline), 1e-12);
    const bar = (value) => make("span", { class: `part ${value < 0 ? "down" : "up"}`, style: `width: ${(100 * Math.abs(value)) / most}%`, "aria-hidden": "true" });
    const number = (value) => (value === null ? "–" : String(value));
    const row = (name, values, value, drawn) => make("tr", {}, make("th", { scope: "row" }, name),
      ...values.map((one) => make("td", {}, one)), make("td", {}, signed(value)), make("td", { class: "bars" }, ...(drawn ? [bar(value)] : [])));
    const names = kept.reasons.features[candidate];
    const rows = parts.map(([feature, value]) =>
      row(names[feature], [upper, lower].map((rank) => number(own.values[feature][rank])), value, true));
    if (names.length > parts.length) rows.push(row("all other features", ["", ""], rest, true));
    if (Math.abs(baseline) > 1e-6) rows.push(row("position in the list", ["", ""], baseline, true));
    rows.push(row("difference of scores", ["", ""], difference, false));
    const heads = ["feature", `item ${own.items[upper]}`, `item ${own.items[lower]}`, "adds", ""];
    return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "What each feature adds" },
      make("table", { class: "plain" },
        make("caption", {}, "What each feature adds to the score of the upper item over that of the lower one: integrated gradients from the mean of the two, or TreeSHAP of boosted trees; parts add up to the difference."),
        make("thead", {}, make("tr", {}, ...heads.map((head) => make("th", { scope: "col" }, head)))),
        make("tbody", {}, ...rows)));
  }

  function inspectRow(row) {
    const query = kept.rows.indexOf(data.changes.index ? data.changes.index[row] : row);
    if (query < 0) {
      $("said").textContent = `The list of query ${data.changes.qids[row]} is not kept on this page.`;
      return;
    }
    $("query-search").value = "";
    fillQueries();
    $("query").value = String(query);
    showLists();
    $("inspector").scrollIntoView();
  }

  function startInspector() {
    if (!arrays) {
      $("inspector-lead").textContent = "There is nothing to inspect: no candidate has an evaluation.";
      for (const part of document.querySelectorAll("#inspector .controls, #inspector .inspect")) part.remove();
      return;
    }
    inspecting = true;
    $("inspector-lead").textContent = `The first ${kept.top} items as each model ranks them, with their relevance labels. ${count(kept.queries.length)} of ${count(data.changes.queries)} queries are kept on this page: ${Object.keys(kept.reasons.queries).length ? "some that are explained, " : ""}those that change most, and some at random.`;
    if (kept.averaged) {
      const seeds = [...new Set(kept.seeds.filter((seed) => seed !== null))];
      const which = seeds.length === 1 ? `seed ${seeds[0]}` : "each candidate's first seed";
      $("inspector-lead").append(` Lists, values and changes here are of ${which} alone; wins and losses above are of means over seeds.`);
      $("query-label").textContent = `Queries, largest change first (${which})`;
    }
    $("query-search").addEventListener("input", fillQueries);
    $("query").addEventListener("change", showLists);
    for (const [id, by] of [["previous", -1], ["next", 1]])
      $(id).addEventListener("click", () => {
        const select = $("query");
        select.selectedIndex = Math.max(0, Math.min(select.length - 1, select.selectedIndex + by));
        showLists();
      });
    const same = (on) => (event) => {
      const item = event.target.closest("tr[data-item]")?.dataset.item;
      for (const row of document.querySelectorAll(".two tr[data-item]")) row.classList.toggle("same", on && row.dataset.item === item);
    };
    document.querySelector(".two").addEventListener("mouseover", same(true));
    document.querySelector(".two").addEventListener("mouseout", same(false));
    fillQueries();
  }

  // ---------------------------------------------------------------- the pair, for both of these

  function choose(a, b) {
    pair.a = a; pair.b = b;
    for (const select of document.querySelectorAll(".choose-a")) select.value = String(a);
    for (const select of document.querySelectorAll(".choose-b")) select.value = String(b);
    showChanges();
    if (inspecting) fillQueries();
  }

  function startPair() {
    const usable = data.order, metrics = data.changes.metrics;
    if (usable.length < 2 || !metrics.length) {
      const why = "Two candidates with evaluations are needed to compare queries.";
      document.querySelector("#changes .controls").remove();
      empty("changes-sorted", why);
      $("changes-histogram").closest("figure").remove();
      if (!usable.length || !metrics.length) return false;
    }
    const names = usable.map((candidate) => [candidate, data.candidates[candidate]]);
    const rivals = usable.filter((candidate) => !data.reference[candidate]);
    pair.a = data.against ?? usable[0];
    pair.b = rivals.find((candidate) => candidate !== pair.a) ?? usable.find((candidate) => candidate !== pair.a) ?? pair.a;
    for (const [kind, other] of [["a", "b"], ["b", "a"]])
      for (const select of document.querySelectorAll(`.choose-${kind}`)) {
        options(select, names, pair[kind]);
        select.addEventListener("change", () => {
          const now = { ...pair, [kind]: Number(select.value) };
          if (now.a === now.b) now[other] = pair[kind]; // choosing the other's swaps them
          choose(now.a, now.b);
        });
      }
    if (!$("changes-metric")) return true;
    options($("changes-metric"), metrics.map((one) => [one.metric, data.metrics[one.metric]]), data.primary);
    $("changes-metric").addEventListener("change", () => choose(pair.a, pair.b));
    $("swap").addEventListener("click", () => choose(pair.b, pair.a));
    showChanges();
    return true;
  }

  // ---------------------------------------------------------------- start, a part at a time

  function markSection() {
    const links = new Map([...document.querySelectorAll(".jump a")].map((link) => [link.hash.slice(1), link]));
    const watch = new IntersectionObserver((entries) => {
      for (const entry of entries)
        if (entry.isIntersecting) {
          for (const link of links.values()) link.removeAttribute("aria-current");
          links.get(entry.target.id)?.setAttribute("aria-current", "true");
        }
    }, { rootMargin: "-20% 0px -70% 0px" });
    for (const section of document.querySelectorAll("main > section")) watch.observe(section);
  }

  startTheme();
  startTables();
  markSection();
  const parts = [startCurves, startRelaxed, startPair, startInspector];
  (function next() {
    const part = parts.shift();
    if (part) { part(); colorSwatches(); setTimeout(next, 0); } // between parts the page can be used
    else root.dataset.ready = "true";
  })();
})();

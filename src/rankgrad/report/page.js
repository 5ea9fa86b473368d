// The report's script: it draws the data that report/_page.py puts in the element "data" of page.html.
// In these data an entry (a ranker), a metric and a fold are indices; a row is the index of a query.
// Text from runs may hold anything, so it is set as text, never as HTML.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const $ = (id) => document.getElementById(id);
  const SHOWN = 6; // rankers whose learning curves are drawn at first
  const POINTS = 1200; // of the line of sorted changes
  const NAN = -32768; // how report/_per_query.py writes NaN in 16 bits
  const DASHES = ["solid", "dash", "dashdot", "longdash"];

  // ---------------------------------------------------------------- helpers

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

  /** Text for Plotly with HTML escaped, as Plotly renders some tags. */
  const literal = (text) =>
    String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const lines = (text) => literal(text).replace(/\n/g, "<br>");
  const shortened = (text, length = 40) => (text.length > length ? text.slice(0, length - 1) + "…" : text);
  /** An object's value for a name that comes from a run, which may be `__proto__`. */
  const lookUp = (object, name) => (Object.hasOwn(object, name) ? object[name] : undefined);
  const count = (number) => number.toLocaleString("en");
  const signed = (value, digits = 4) =>
    (value > 0 ? "+" : value < 0 ? "−" : "±") + Math.abs(value).toFixed(digits);
  const variable = (name) => getComputedStyle(root).getPropertyValue(name).trim(); // of page.css
  const color = (entry) => variable(`--c${entry % 10}`);
  const dash = (entry) => DASHES[Math.floor(entry / 10) % DASHES.length];

  /** A color of the form #rrggbb with an opacity. */
  function faded(hex, opacity) {
    const n = parseInt(hex.slice(1), 16);
    return `rgba(${n >> 16}, ${(n >> 8) & 255}, ${n & 255}, ${opacity})`;
  }

  /** A typed array from base64. */
  function unpack(text, ArrayType) {
    const binary = atob(text);
    const bytes = new Uint8Array(binary.length);
    for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
    return new ArrayType(bytes.buffer);
  }

  /** Fill a select element with options, pairs of value and text. */
  function setOptions(select, pairs, chosen) {
    select.replaceChildren(
      ...pairs.map(([value, text]) => {
        const option = make("option", { value }, text);
        option.selected = String(value) === String(chosen);
        return option;
      })
    );
  }

  /** Sort objects by their `entry`, in the order of the table; entries that are not compared are last. */
  function byOrder(objects) {
    const position = new Map(data.order.map((entry, i) => [entry, i]));
    return [...objects].sort((a, b) => (position.get(a.entry) ?? 1e9) - (position.get(b.entry) ?? 1e9));
  }

  function colorSwatches() {
    for (const swatch of document.querySelectorAll(".swatch[data-entry]"))
      swatch.style.background = color(Number(swatch.dataset.entry));
  }

  // ---------------------------------------------------------------- charts

  let inspecting = false; // whether the inspector has lists to show
  const charts = new Map(); // id of a chart -> function that gives its [traces, layout] in the theme's colors

  /** Plotly's layout with the titles of the x and y axes; `more` overrides it. */
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

  /** Draw a chart, with a text that says what it shows; `chart` gives [traces, layout]. */
  function draw(id, chart, summary) {
    const element = $(id);
    charts.set(id, chart);
    element.removeAttribute("data-empty");
    element.setAttribute("aria-label", summary);
    $(`${id.replace("-chart", "")}-summary`).textContent = summary;
    const [traces, chartLayout] = chart();
    if (element.firstChild && element.firstChild.nodeType === Node.TEXT_NODE) element.textContent = "";
    return Plotly.react(element, traces, chartLayout, { responsive: true, displayModeBar: false, doubleClick: false });
  }

  /** Show a sentence in place of a chart. */
  function showEmpty(id, reason) {
    const element = $(id);
    charts.delete(id);
    if (element.classList.contains("js-plotly-plot")) Plotly.purge(element);
    element.setAttribute("data-empty", "");
    element.setAttribute("aria-label", reason);
    element.textContent = reason;
    $(`${id.replace("-chart", "")}-summary`).textContent = "";
  }

  /** Draw everything again, after the theme has changed. */
  function redraw() {
    colorSwatches();
    for (const [id, chart] of charts) {
      const [traces, chartLayout] = chart();
      Plotly.react($(id), traces, chartLayout, { responsive: true, displayModeBar: false, doubleClick: false });
    }
    if (inspecting) showLists();
  }

  // ---------------------------------------------------------------- light and dark

  /** Set the theme; `remember` it if the user has chosen it. */
  function setTheme(dark, remember) {
    root.dataset.theme = dark ? "dark" : "light";
    $("theme").setAttribute("aria-pressed", String(dark));
    if (remember) try { localStorage.setItem("rankgrad-theme", root.dataset.theme); } catch { /* storage is forbidden: not remembered */ }
    redraw();
  }

  function startTheme() {
    const system = matchMedia("(prefers-color-scheme: dark)");
    let chosen = null;
    try { chosen = localStorage.getItem("rankgrad-theme"); } catch { /* storage is forbidden */ }
    setTheme(chosen ? chosen === "dark" : system.matches, false);
    system.addEventListener("change", (event) => setTheme(event.matches, false));
    $("theme").addEventListener("click", () => setTheme(root.dataset.theme !== "dark", true));
  }

  // ---------------------------------------------------------------- tables that sort

  /** What a row is sorted by in a column: a number, a text, or null if the cell is empty. */
  function sortKey(row, column) {
    const cell = row.cells[column];
    const text = cell.dataset.value ?? cell.textContent.trim();
    const number = Number(text.replace(/,/g, ""));
    return text === "" || text === "–" ? null : Number.isNaN(number) ? text : number;
  }

  function sortBy(table, head, direction) {
    const column = head.cellIndex;
    const sign = direction === "ascending" ? 1 : -1;
    const rows = [...table.tBodies[0].rows].map((row) => [row, sortKey(row, column)]);
    rows.sort(([, a], [, b]) => {
      if (a === null || b === null) return (a === null) - (b === null); // empty cells stay below
      if (typeof a === "number" && typeof b === "number") return sign * (a - b);
      return sign * String(a).localeCompare(String(b), "en", { numeric: true });
    });
    table.tBodies[0].append(...rows.map(([row]) => row));
    for (const other of table.tHead.rows[0].cells) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", direction);
    $("said").textContent = `Sorted by ${head.textContent.trim()}, ${direction}`;
  }

  /** Show a hint under the tables that can be scrolled to the right. */
  function markScroll() {
    for (const box of document.querySelectorAll(".scroll")) {
      if (box.scrollWidth > box.clientWidth + 4 && box.scrollLeft + box.clientWidth < box.scrollWidth - 4) box.dataset.more = "scroll for more columns →";
      else delete box.dataset.more;
    }
  }

  function startTables() {
    markScroll();
    window.addEventListener("resize", markScroll);
    document.addEventListener("toggle", markScroll, true);
    for (const box of document.querySelectorAll(".scroll")) box.addEventListener("scroll", markScroll, { passive: true });
    for (const table of document.querySelectorAll("table.sortable"))
      for (const head of table.tHead.rows[0].cells)
        head.querySelector("button").addEventListener("click", () => {
          const current = head.getAttribute("aria-sort");
          const first = head.dataset.kind === "number" ? "descending" : "ascending";
          const second = first === "ascending" ? "descending" : "ascending";
          sortBy(table, head, current === first ? second : first);
        });
    const main = document.querySelector("#comparison th.main");
    if (main) main.setAttribute("aria-sort", data.lower[data.primary] ? "ascending" : "descending");
  }

  // ---------------------------------------------------------------- overview

  /** A ranker's name as a tick label, with a text below it; long names are cut: the table has them. */
  const tick = ({ entry, text }) =>
    literal(shortened(data.entries[entry], window.innerWidth < 600 ? 16 : 34)) + (text ? `<br><span style="font-size:11px">${literal(text)}</span>` : "");

  /** A chart of one row per ranker; dots with intervals, the first ranker on top. */
  function dotChart(id, rows, more, summary) {
    $(id).style.height = `${90 + 36 * Math.max(2, rows.length)}px`;
    draw(id, () => [
      rows.map(({ entry, values: [mean, low, high], tint }) => ({
        type: "scatter", mode: "markers", x: [mean], y: [data.entries[entry]],
        error_x: { type: "data", symmetric: false, array: [high - mean], arrayminus: [mean - low], color: tint(), thickness: 2, width: 5 },
        marker: { color: tint(), size: 11, symbol: data.reference[entry] ? "diamond-open" : "circle" },
        hovertemplate: `<b>${literal(shortened(data.entries[entry]))}</b><br>${more.hover(mean, low, high, entry)}<extra></extra>`,
      })),
      layout([window.innerWidth < 600 ? more.short : more.title, ""], {
        yaxis: { type: "category", categoryarray: rows.map((row) => data.entries[row.entry]).reverse(), categoryorder: "array", tickmode: "array", tickvals: rows.map((row) => data.entries[row.entry]), ticktext: rows.map(tick), range: [-0.7, rows.length - 0.3] },
        xaxis: { ...more.xaxis },
      }),
    ], summary);
  }

  function showOverview() {
    const index = Number($("overview-metric").value), metric = data.metrics[index], lower = data.lower[index];
    const sign = lower ? 1 : -1;
    const rows = data.means[index].map((values, entry) => ({ entry, values, tint: () => color(entry) })).filter((row) => row.values);
    rows.sort((a, b) => sign * (a.values[0] - b.values[0]));
    const direction = lower ? "lower is better" : "higher is better";
    dotChart("overview-means", rows,
      { title: `${metric}, ${direction}`, short: metric, hover: (mean, low, high) => `${mean.toFixed(4)} (${low.toFixed(4)} to ${high.toFixed(4)})` },
      `Mean ${metric} with 95% intervals over queries: ${rows.slice(0, 8).map((row) => `${data.entries[row.entry]} ${row.values[0].toFixed(4)}`).join(", ")}.`);
    showDifferences(index);
    showTime(rows, metric, direction);
  }

  function showDifferences(index) {
    const metric = data.metrics[index], tested = data.differences[index];
    // The entry that the others are tested against: the only one with a mean that is not among them.
    const against = data.means[index].findIndex((values, entry) => values && !data.reference[entry] && !tested.some((test) => test.entry === entry));
    if (!tested.length) return showEmpty("overview-differences", "There are no two rankers to test.");
    const sign = data.lower[index] ? 1 : -1;
    const p = (value) => (value === null ? "not tested" : value < 1e-4 ? "p < 0.0001" : `p = ${value.toFixed(4)}`);
    const tint = (test) => () => variable(!test.significant ? "--soft" : test.better ? "--win" : "--loss");
    const rows = tested.map((test) => ({ entry: test.entry, values: test.difference, text: p(test.p) + (test.significant ? (test.better ? " ‡" : " †") : ""), tint: tint(test) }));
    rows.sort((a, b) => sign * (a.values[0] - b.values[0]));
    const name = against >= 0 ? data.entries[against] : "the reference";
    dotChart("overview-differences", rows,
      { title: `difference in ${metric} from ${shortened(name)}`, short: `difference in ${metric}`, hover: (mean, low, high) => `${signed(mean)} (${signed(low)} to ${signed(high)})`, xaxis: { zeroline: true } },
      `Differences in ${metric} from ${name}, with 95% intervals and corrected p-values; † significantly worse, ‡ better: ${rows.slice(0, 6).map((row) => `${data.entries[row.entry]} ${signed(row.values[0])} (${row.text})`).join(", ")}.`);
  }

  function showTime(rows, metric, direction) {
    const timed = rows.filter((row) => data.seconds[row.entry] !== null && data.seconds[row.entry] > 0);
    if (!timed.length) return showEmpty("overview-time", "No run says how long training took.");
    const wide = Math.max(...timed.map((row) => data.seconds[row.entry])) > 20 * Math.min(...timed.map((row) => data.seconds[row.entry]));
    draw("overview-time", () => [
      timed.map(({ entry, values }, i) => ({
        type: "scatter", mode: "markers+text", x: [data.seconds[entry]], y: [values[0]], text: [literal(shortened(data.entries[entry], 22))], textposition: i % 2 ? "bottom left" : "top left", textfont: { size: 11, color: variable("--soft") }, cliponaxis: false,
        marker: { color: color(entry), size: 12, symbol: data.trees[entry] ? "square" : "circle" },
        hovertemplate: `<b>${literal(shortened(data.entries[entry]))}</b><br>%{x:.1f} seconds, %{y:.4f}<extra></extra>`,
      })),
      layout(["seconds of training a run", metric], { xaxis: wide ? { type: "log", dtick: 1 } : { rangemode: "tozero" } }),
    ], `Mean seconds of training a run against ${metric} (${direction}), without any search for values: ${timed.slice(0, 8).map((row) => `${data.entries[row.entry]} ${data.seconds[row.entry].toFixed(1)} s`).join(", ")}.`);
  }

  function startOverview() {
    if (!data.order.length || !data.metrics.length) {
      for (const part of document.querySelectorAll("#overview .controls, #overview h3, #overview figure")) part.remove();
      $("overview").append(make("p", { class: "lead" }, "There is nothing to show: no ranker has all of its runs."));
      return;
    }
    setOptions($("overview-metric"), data.metrics.map((metric, i) => [i, metric]), data.primary);
    $("overview-metric").addEventListener("change", showOverview);
    showOverview();
  }

  // ---------------------------------------------------------------- learning curves

  const visible = new Set(); // the entries whose curves are drawn

  /** A band and its mean line, which is dotted after the epoch `ends`, when the first run stopped. */
  function bandTraces(line, entry, ends, name, style = {}) {
    const tint = style.color ?? color(entry);
    const shape = style.dash ?? dash(entry);
    const hasBand = line.low.some((low, i) => low !== line.high[i]);
    const traces = [];
    if (hasBand)
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

  /** Networks and trees have separate charts: beside hundreds of trees, a few epochs would be too narrow. */
  function showCurves() {
    const { series } = data.curves;
    const trees = series.filter((curve) => curve.trees), networks = series.filter((curve) => !curve.trees);
    if (!networks.length) return showPanel("curve-chart", "tree", trees);
    showPanel("curve-chart", "epoch", networks);
    const hasTrees = trees.some((curve) => visible.has(curve.entry) && lookUp(curve.lines, $("curve-metric").value));
    $("tree-figure").hidden = !hasTrees;
    if (hasTrees) showPanel("tree-chart", "tree", trees);
  }

  /** The index of the best of some means; `lower` says whether lower is better. */
  function bestIndex(means, lower) {
    let best = 0;
    means.forEach((v, i) => { if (v !== null && (means[best] === null || (lower ? v < means[best] : v > means[best]))) best = i; });
    return best;
  }

  /** A range of the y axis that leaves out early epochs if they are far from all later ones; else null. */
  function cutRange(lines, lower) {
    const later = lines.flatMap((line) => line.mean.slice(Math.min(line.mean.length - 1, Math.max(1, Math.floor(line.mean.length / 10))))).filter((v) => v !== null);
    const all = lines.flatMap((line) => line.mean).filter((v) => v !== null);
    if (!later.length) return null;
    const [low, high] = [Math.min(...later), Math.max(...later)];
    const height = Math.max(high - low, 1e-6);
    const hasOutliers = lower ? Math.max(...all) > high + 1.5 * height : Math.min(...all) < low - 1.5 * height;
    if (!hasOutliers) return null;
    return lower ? [Math.min(...all) - 0.08 * height, high + 0.25 * height] : [low - 0.25 * height, Math.max(...all) + 0.08 * height];
  }

  /** Draw the learning curves of some series; `unit` is what an epoch is called. */
  function showPanel(id, unit, allSeries) {
    const metric = $("curve-metric").value;
    const series = byOrder(allSeries).filter((curve) => visible.has(curve.entry) && lookUp(curve.lines, metric));
    const label = metric === "loss" ? "training loss" : `validation ${metric}`;
    const index = data.metrics.indexOf(metric);
    const lower = metric === "loss" || (index >= 0 && data.lower[index]);
    const marks = series.map((curve) => {
      const line = lookUp(curve.lines, metric), best = bestIndex(line.mean, lower);
      return { curve, epoch: line.epoch[best], mean: line.mean[best] };
    });
    const best = marks.map(({ curve, epoch, mean }) => `${data.entries[curve.entry]} ${mean?.toFixed(4)} at ${unit} ${epoch}`);
    const listed = best.slice(0, 8).join("; ") + (best.length > 8 ? "; …" : "");
    const range = cutRange(series.map((curve) => lookUp(curve.lines, metric)), lower);
    const cut = range ? " Early values are outside of the chart." : "";
    draw(
      id,
      () => [
        [
          ...series.flatMap((curve) => bandTraces(lookUp(curve.lines, metric), curve.entry, curve.ends, data.entries[curve.entry], { unit, opacity: curve.over === "folds" ? 0.06 : 0.16 })),
          ...marks.map(({ curve, epoch, mean }) => ({
            type: "scatter", mode: "markers", x: [epoch], y: [mean], marker: { symbol: "diamond", size: 11, color: color(curve.entry), line: { color: variable("--paper"), width: 1.5 } },
            hovertemplate: `<b>${literal(shortened(data.entries[curve.entry]))}</b><br>best: ${unit} %{x}, %{y:.4f}<extra></extra>`,
          })),
        ],
        layout([unit, label], range ? { yaxis: { range, autorange: false } } : {}),
      ],
      series.length ? `${label}, ${lower ? "lowest" : "highest"} mean: ${listed}.${cut}` : "No ranker is chosen."
    );
  }

  function startCurves() {
    const { metrics, series } = data.curves;
    if (!series.length) {
      $("curve-metric").closest(".controls").remove();
      return showEmpty("curve-chart", "No run has learning curves; scores from elsewhere have none.");
    }
    const first = data.metrics[data.primary];
    setOptions($("curve-metric"), [...metrics.map((m) => [m, m]), ["loss", "training loss (not comparable between losses)"]], metrics.includes(first) ? first : metrics[0] ?? "loss");
    const sorted = byOrder(series);
    sorted.slice(0, SHOWN).forEach((curve) => visible.add(curve.entry));
    for (const curve of sorted) {
      const chip = make("button", { type: "button", class: "chip", "aria-pressed": String(visible.has(curve.entry)) },
        make("span", { class: "swatch", "data-entry": curve.entry, "aria-hidden": "true" }), data.entries[curve.entry]);
      chip.addEventListener("click", () => {
        const on = !visible.has(curve.entry);
        if (on) visible.add(curve.entry); else visible.delete(curve.entry);
        chip.setAttribute("aria-pressed", String(on));
        showCurves();
      });
      $("curve-chips").append(chip);
    }
    $("curve-metric").addEventListener("change", showCurves);
    showCurves();
  }

  // ---------------------------------------------------------------- relaxed and exact

  /** The path of a loss through training: the exact metric against the relaxed one. */
  function pathTrace(curve) {
    const tint = color(curve.entry), name = literal(shortened(data.entries[curve.entry]));
    const last = curve.relaxed.mean.length - 1;
    const size = curve.relaxed.mean.map((_, i) => (i === last ? 12 : 4));
    return {
      type: "scatter", mode: "lines+markers", x: curve.relaxed.mean, y: curve.exact.mean, customdata: curve.relaxed.epoch,
      line: { color: faded(tint, 0.55), width: 1.6 }, marker: { color: tint, size },
      hovertemplate: `<b>${name}</b><br>epoch %{customdata}<br>relaxed %{x:.4f}, exact %{y:.4f}<extra></extra>`,
    };
  }

  function showRelaxed() {
    const curve = data.relaxed.find((candidate) => String(candidate.entry) === $("relaxed-entry").value);
    const last = (values) => values[values.length - 1];
    const ends = Math.max(...curve.relaxed.epoch);
    draw(
      "relaxed-epochs",
      () => [
        [
          ...bandTraces(curve.relaxed, curve.entry, ends, "relaxed, training", { color: variable("--loss"), dash: "dash" }),
          ...bandTraces(curve.exact, curve.entry, ends, `exact ${curve.exact_metric}, validation`, { color: variable("--win"), dash: "solid" }),
        ],
        layout(["epoch", `relaxed ${curve.metric} (training)\nexact ${curve.exact_metric} (validation)`]),
      ],
      `${data.entries[curve.entry]}: relaxed ${curve.metric} in training (dashed, orange) went from ${curve.relaxed.mean[0]?.toFixed(4)} to ${last(curve.relaxed.mean)?.toFixed(4)}; exact ${curve.exact_metric} in validation (solid, blue) from ${curve.exact.mean[0]?.toFixed(4)} to ${last(curve.exact.mean)?.toFixed(4)}.`
    );
  }

  function startRelaxed() {
    if (!data.relaxed.length) {
      $("relaxed-controls").remove();
      showEmpty("relaxed-path", "None of the losses is a relaxed metric, or none has learning curves.");
      $("relaxed-epochs").closest("figure").remove();
      return;
    }
    const sorted = byOrder(data.relaxed);
    const shown = sorted.slice(0, 12);
    const names = shown.map((curve) => `${data.entries[curve.entry]} (relaxed ${curve.metric}, exact ${curve.exact_metric})`).join(", ");
    const common = (key, otherwise) => { // the metric that all curves have, or a word if they differ
      const names = new Set(shown.map((curve) => curve[key]));
      return names.size === 1 ? [...names][0] : otherwise;
    };
    draw(
      "relaxed-path",
      () => [shown.map(pathTrace), layout([`relaxed ${common("metric", "value")} (training)`, `exact ${common("exact_metric", "metric")} (validation)`])],
      `The way of ${shown.length === 1 ? "one loss" : `${shown.length} losses`} through training: ${names}.`
    );
    $("relaxed-path-summary").append(" ", ...shown.map((curve) => make("span", { class: "key" },
      make("span", { class: "swatch", "data-entry": curve.entry, "aria-hidden": "true" }), ` ${data.entries[curve.entry]}`)));
    setOptions($("relaxed-entry"), sorted.map((curve) => [curve.entry, data.entries[curve.entry]]), sorted[0].entry);
    $("relaxed-entry").addEventListener("change", showRelaxed);
    showRelaxed();
  }

  // ---------------------------------------------------------------- wins and losses

  const pair = { a: null, b: null }; // the entries that are compared
  const unpacked = new Map();

  /** The values of an entry's queries for one packed metric, as 16-bit codes; null if it has none. */
  function values(packed, entry) {
    const key = `${packed.metric}/${entry}`;
    if (!unpacked.has(key)) {
      const text = packed.values[entry];
      unpacked.set(key, text === undefined ? null : unpack(text, Int16Array));
    }
    return unpacked.get(key);
  }

  /** By how much A is better than B: [row, difference] for each query. Equal values have equal codes. */
  function differences(packed) {
    const a = values(packed, pair.a), b = values(packed, pair.b);
    if (!a || !b) return null;
    const sign = data.lower[packed.metric] ? -1 : 1;
    const changes = [];
    for (let row = 0; row < a.length; row++)
      if (a[row] !== NAN && b[row] !== NAN) changes.push([row, sign * (a[row] - b[row]) * packed.step]);
    return changes;
  }

  /** Show how many queries each of the two wins; the numbers. */
  function showTally(changes, metric) {
    const wins = changes.filter(([, d]) => d > 0).length, losses = changes.filter(([, d]) => d < 0).length;
    const ties = changes.length - wins - losses;
    const mean = changes.reduce((sum, [, d]) => sum + d, 0) / Math.max(1, changes.length);
    const part = (number) => `flex: ${number} 0 0`;
    const [nameA, nameB] = [data.entries[pair.a], data.entries[pair.b]];
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
    const packed = data.changes.metrics.find((candidate) => String(candidate.metric) === $("changes-metric").value);
    const changes = packed ? differences(packed) : null;
    if (!changes || pair.a === pair.b) {
      const reason = pair.a === pair.b ? "A and B are the same: choose two rankers." : "One of the two has no values of this metric.";
      $("tally").replaceChildren();
      showEmpty("changes-sorted", reason);
      return showEmpty("changes-histogram", reason);
    }
    const metric = data.metrics[packed.metric];
    const sums = showTally(changes, metric);
    changes.sort((x, y) => y[1] - x[1]);
    const step = Math.max(1, (changes.length - 1) / (POINTS - 1));
    const picked = [];
    for (let i = 0; i < changes.length; i += step) picked.push(Math.round(i));
    if (changes.length && picked[picked.length - 1] !== changes.length - 1) picked.push(changes.length - 1);
    const sample = data.changes.rows < data.changes.queries ? ` ${count(data.changes.rows)} of ${count(data.changes.queries)} queries, drawn at random.` : "";
    draw("changes-sorted", () => sortedChart(changes, picked, metric),
      `The queries sorted by the change in ${metric} from B to A; from ${changes.length ? signed(changes[0][1]) : 0} down to ${changes.length ? signed(changes[changes.length - 1][1]) : 0}.${sample} Click one to inspect it, where its list is saved.`);
    const bins = histogram(changes);
    draw("changes-histogram", () => histogramChart(bins),
      `How many queries changed by how much in ${metric}; ${count(sums.ties)} queries without a change are not drawn. ${count(bins.large)} changed by more than half of the largest change.`);
    const chart = $("changes-sorted");
    chart.removeAllListeners?.("plotly_click");
    chart.on("plotly_click", (event) => inspectRow(event.points[0].customdata[1]));
  }

  /** The chart of sorted changes; `picked` are the indices of those that are drawn. */
  function sortedChart(changes, picked, metric) {
    const side = (isOfSide, tint) => ({
      type: "scatter", mode: "lines", fill: "tozeroy", x: picked.map((i) => i + 1), y: picked.map((i) => (isOfSide(changes[i][1]) ? changes[i][1] : 0)),
      customdata: picked.map((i) => [literal(data.changes.qids[changes[i][0]]), changes[i][0]]), line: { color: tint, width: 1.5, shape: "hv" }, fillcolor: faded(tint, 0.35),
      hovertemplate: "query %{customdata[0]}<br>change %{y:+.4f}<extra></extra>",
    });
    return [
      [side((d) => d > 0, variable("--win")), side((d) => d < 0, variable("--loss"))],
      layout(["queries, from A's wins to B's", `change in ${metric}`], { yaxis: { zeroline: true } }),
    ];
  }

  /** Changes in 20 bins on each side of 0; queries without a change are left out. */
  function histogram(changes) {
    const largest = changes.reduce((m, [, d]) => Math.max(m, Math.abs(d)), 0) || 1;
    const half = 20, counts = new Array(2 * half).fill(0);
    let large = 0;
    for (const [, d] of changes) {
      if (d === 0) continue;
      const bin = Math.min(half - 1, Math.floor((Math.abs(d) / largest) * half));
      counts[d > 0 ? half + bin : half - 1 - bin] += 1;
      if (Math.abs(d) > largest / 2) large += 1;
    }
    return { counts, centers: counts.map((_, i) => ((i - half + 0.5) * largest) / half), width: largest / half, large };
  }

  function histogramChart(bins) {
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

  const saved = data.lists; // the ranked lists of some queries; a query here is an index of saved.queries
  const arrays = saved.queries.length ? {
    items: unpack(saved.items, Uint32Array), scores: unpack(saved.scores, Float32Array),
    codes: unpack(saved.codes, Uint16Array), values: unpack(saved.values, Float32Array),
  } : null;

  const listMetric = () => Number($("changes-metric")?.value || data.primary);
  const savedIndex = (entry) => saved.entries.indexOf(entry);
  /** The value of a metric of a query under an entry. */
  const valueOf = (entry, query, metric) =>
    arrays.values[(savedIndex(entry) * saved.queries.length + query) * data.metrics.length + metric];

  /** By how much A is better than B on a query, by the metric that is chosen. */
  function changeOf(query) {
    const metric = listMetric(), sign = data.lower[metric] ? -1 : 1;
    return sign * (valueOf(pair.a, query, metric) - valueOf(pair.b, query, metric));
  }

  const queryName = (query) => {
    const { qid, fold } = saved.queries[query];
    return data.folds.length > 1 ? `${qid} (${data.folds[fold]})` : qid;
  };

  /** List the queries that the search matches, the largest change first, and show one. */
  function fillQueries() {
    const current = $("query").value;
    const searched = $("query-search").value.trim().toLowerCase();
    const rows = saved.queries.map((_, query) => [query, changeOf(query)])
      .filter(([query]) => queryName(query).toLowerCase().includes(searched))
      .sort(([, x], [, y]) => (Math.abs(y) || 0) - (Math.abs(x) || 0));
    const isListed = rows.some(([query]) => String(query) === current);
    setOptions($("query"), rows.map(([query, change]) => [query, `${signed(change || 0, 3)}  ${queryName(query)}`]), isListed ? current : rows[0]?.[0]);
    showLists();
  }

  /** The first items of a query as an entry ranks them. */
  function ranking(entry, query) {
    const top = saved.top, start = (savedIndex(entry) * saved.queries.length + query) * top;
    const rows = [];
    for (let i = start; i < start + Math.min(top, saved.queries[query].items); i++)
      rows.push({ item: arrays.items[i], score: arrays.scores[i], label: saved.labels[arrays.codes[i]] });
    return rows;
  }

  /** A label on a background that is the stronger, the nearer it is to the highest label. */
  function grade(label, highest) {
    const step = label <= 0 ? 0 : Math.max(1, Math.round((4 * label) / Math.max(highest, 1e-9)));
    return make("span", { class: "grade", style: `background: var(--g${step}); color: var(--g${step}i)` }, String(label));
  }

  /** How many ranks an item is above or below its rank in the other list. */
  function move(rank, otherRank, top) {
    if (otherRank === undefined)
      return make("span", { class: "up", title: `below rank ${top} in the other list` }, "▲ new");
    if (otherRank === rank) return make("span", {}, "=");
    return make("span", { class: otherRank > rank ? "up" : "down" }, `${otherRank > rank ? "▲" : "▼"} ${Math.abs(otherRank - rank)}`);
  }

  /** The table of one of the two lists; `letter` is A or B, `otherRows` are those of the other list. */
  function listTable(letter, entry, query, otherRows, highest) {
    const metric = listMetric(), rows = ranking(entry, query);
    const value = valueOf(entry, query, metric), seed = saved.seeds[savedIndex(entry)];
    const ranks = new Map(otherRows.map((row, i) => [row.item, i + 1]));
    const heads = ["#", "label", "item", "score", `vs ${letter === "A" ? "B" : "A"}`];
    const body = rows.map((row, i) => make("tr", { "data-item": row.item },
      make("th", { scope: "row" }, String(i + 1)), make("td", {}, grade(row.label, highest)), make("td", {}, String(row.item)),
      make("td", { class: "score" }, row.score.toPrecision(3)), make("td", { class: "move" }, move(i + 1, ranks.get(row.item), saved.top))));
    const caption = make("caption", {}, `${letter}: ${data.entries[entry]}`,
      make("small", {}, `${data.metrics[metric]} ${Number.isNaN(value) ? "left out" : value.toFixed(4)}${seed === null ? "" : `, seed ${seed}`}`));
    return make("table", {}, caption,
      make("thead", {}, make("tr", {}, ...heads.map((head, i) => make("th", { scope: "col", class: ["", "", "", "score", "move"][i] }, head)))),
      make("tbody", {}, ...body));
  }

  function showLists() {
    const chosen = $("query").value;
    if (chosen === "") {
      $("query-about").replaceChildren(make("p", { class: "about" }, "No query that is shown has this id."));
      for (const id of ["list-a", "list-b", "why"]) $(id).replaceChildren();
      return;
    }
    const query = Number(chosen), about = saved.queries[query];
    const highest = saved.labels.reduce((high, label) => Math.max(high, label), 0);
    const labels = !about.items ? "none of any label" : about.labels.map(([label, number]) => `${count(number)} with label ${label}`).join(", ");
    $("query-about").replaceChildren(
      make("p", { class: "about" }, make("b", {}, `Query ${queryName(query)}`), `: ${count(about.items)} items, ${labels}. Change in ${data.metrics[listMetric()]} from B to A: ${signed(changeOf(query) || 0)}.`));
    $("list-a").replaceChildren(listTable("A", pair.a, query, ranking(pair.b, query), highest));
    $("list-b").replaceChildren(listTable("B", pair.b, query, ranking(pair.a, query), highest));
    showWhy(query);
  }

  // ---------------------------------------------------------------- why an item stands above another

  const selected = { entry: null, upper: null, lower: null }; // what the user chose last: an entry, two ranks

  /** The pair that is shown first: the first with the less relevant item above, or the first of all. */
  function firstMistake(explanation, rows) {
    const label = (rank) => rows.find((row) => row.item === explanation.items[rank])?.label ?? 0;
    return explanation.pairs.find(([upper, lower]) => label(upper) < label(lower)) ?? explanation.pairs[0];
  }

  /** A labeled select element; `change` is called with the value that the user chooses. */
  function choice(text, pairs, chosen, change) {
    const select = make("select", {});
    setOptions(select, pairs, chosen);
    select.addEventListener("change", () => { change(select.value); showLists(); });
    return make("label", {}, `${text} `, select);
  }

  /** Show why one item of a query is above another, with selects for entry and items. */
  function showWhy(query) {
    const { queries, problems } = saved.explained;
    const entries = [...new Set([pair.a, pair.b])].filter((entry) => queries[entry]?.[query]?.pairs.length);
    if (!entries.length) {
      const hasOthers = Object.keys(queries).length > 0;
      const reason = hasOthers
        ? "Why an item stands above another is not explained for this query and these two."
        : "To see here why an item stands above another, keep explanations: rankgrad explain RUN DATA --save.";
      return $("why").replaceChildren(...[reason, ...problems].map((text) => make("p", { class: "about" }, text)));
    }
    const entry = entries.includes(selected.entry) ? selected.entry : entries[0];
    const explanation = queries[entry][query], first = firstMistake(explanation, ranking(entry, query));
    const upper = explanation.pairs.some(([rank]) => rank === selected.upper) ? selected.upper : first[0];
    const shownPair = explanation.pairs.find(([rank, lower]) => rank === upper && lower === selected.lower)
      ?? (upper === first[0] ? first : explanation.pairs.find(([rank]) => rank === upper));
    const itemName = (rank) => `item ${explanation.items[rank]} (rank ${rank + 1})`;
    const uppers = [...new Set(explanation.pairs.map(([rank]) => rank))];
    const lowers = explanation.pairs.filter(([rank]) => rank === upper).map(([, lower]) => lower);
    $("why").replaceChildren(
      make("h3", {}, "Why one item stands above another"),
      make("div", { class: "controls" },
        choice("In", entries.map((id) => [id, `${id === pair.a ? "A" : "B"}: ${data.entries[id]}`]), entry, (value) => { selected.entry = Number(value); }),
        choice("why", uppers.map((rank) => [rank, itemName(rank)]), upper, (value) => { selected.entry = entry; selected.upper = Number(value); }),
        choice("above", lowers.map((rank) => [rank, itemName(rank)]), shownPair[1], (value) => { selected.entry = entry; selected.upper = upper; selected.lower = Number(value); })),
      whyTable(entry, explanation, shownPair));
  }

  /** The table of what each feature adds, for one pair as report/_explained.py packs it. */
  function whyTable(entry, explanation, [upper, lower, difference, baseline, parts]) {
    const rest = difference - baseline - parts.reduce((sum, [, value]) => sum + value, 0);
    const largest = Math.max(...parts.map(([, value]) => Math.abs(value)), Math.abs(rest), Math.abs(baseline), 1e-12);
    const bar = (value) => make("span", { class: `part ${value < 0 ? "down" : "up"}`, style: `width: ${(100 * Math.abs(value)) / largest}%`, "aria-hidden": "true" });
    const number = (value) => (value === null ? "–" : String(value));
    const row = (name, values, value, hasBar) => make("tr", {}, make("th", { scope: "row" }, name),
      ...values.map((text) => make("td", {}, text)), make("td", {}, signed(value)), make("td", { class: "bars" }, ...(hasBar ? [bar(value)] : [])));
    const names = saved.explained.features[entry];
    const rows = parts.map(([feature, value]) =>
      row(names[feature], [upper, lower].map((rank) => number(explanation.values[feature][rank])), value, true));
    if (names.length > parts.length) rows.push(row("all other features", ["", ""], rest, true));
    if (Math.abs(baseline) > 1e-6) rows.push(row("position in the list", ["", ""], baseline, true));
    rows.push(row("difference of scores", ["", ""], difference, false));
    const heads = ["feature", `item ${explanation.items[upper]}`, `item ${explanation.items[lower]}`, "adds", ""];
    return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "What each feature adds" },
      make("table", { class: "plain" },
        make("caption", {}, "What each feature adds to the score of the upper item over that of the lower one: integrated gradients from the mean of the two, or TreeSHAP of boosted trees; parts add up to the difference."),
        make("thead", {}, make("tr", {}, ...heads.map((head) => make("th", { scope: "col" }, head)))),
        make("tbody", {}, ...rows)));
  }

  /** Show the lists of the query of a row of the chart of changes, if the page has them. */
  function inspectRow(row) {
    const query = saved.rows.indexOf(data.changes.index ? data.changes.index[row] : row);
    if (query < 0) {
      $("said").textContent = `The list of query ${data.changes.qids[row]} is not shown on this page.`;
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
      $("inspector-lead").textContent = "There is nothing to inspect: no ranker has an evaluation.";
      for (const part of document.querySelectorAll("#inspector .controls, #inspector .inspect")) part.remove();
      return;
    }
    inspecting = true;
    $("inspector-lead").textContent = `The first ${saved.top} items as each model ranks them, with their relevance labels. ${count(saved.queries.length)} of ${count(data.changes.queries)} queries are shown on this page: ${Object.keys(saved.explained.queries).length ? "some that are explained, " : ""}those that change most, and some at random.`;
    if (saved.averaged) {
      const seeds = [...new Set(saved.seeds.filter((seed) => seed !== null))];
      const seedName = seeds.length === 1 ? `seed ${seeds[0]}` : "each ranker's first seed";
      $("inspector-lead").append(` Lists, values and changes here are of ${seedName} alone; wins and losses above are of means over seeds.`);
      $("query-label").textContent = `Queries, largest change first (${seedName})`;
    }
    $("query-search").addEventListener("input", fillQueries);
    $("query").addEventListener("change", showLists);
    for (const [id, step] of [["previous", -1], ["next", 1]])
      $(id).addEventListener("click", () => {
        const select = $("query");
        select.selectedIndex = Math.max(0, Math.min(select.length - 1, select.selectedIndex + step));
        showLists();
      });
    const highlight = (on) => (event) => { // the rows of the same item in both lists
      const item = event.target.closest("tr[data-item]")?.dataset.item;
      for (const row of document.querySelectorAll(".two tr[data-item]")) row.classList.toggle("same", on && row.dataset.item === item);
    };
    document.querySelector(".two").addEventListener("mouseover", highlight(true));
    document.querySelector(".two").addEventListener("mouseout", highlight(false));
    fillQueries();
  }

  // ---------------------------------------------------------------- the pair of rankers, for changes and inspector

  /** Compare two entries, in the charts of changes and in the inspector. */
  function choosePair(a, b) {
    pair.a = a; pair.b = b;
    for (const select of document.querySelectorAll(".choose-a")) select.value = String(a);
    for (const select of document.querySelectorAll(".choose-b")) select.value = String(b);
    showChanges();
    if (inspecting) fillQueries();
  }

  function startPair() {
    const entries = data.order, metrics = data.changes.metrics;
    if (entries.length < 2 || !metrics.length) {
      const reason = "Two rankers with evaluations are needed to compare queries.";
      document.querySelector("#changes .controls").remove();
      showEmpty("changes-sorted", reason);
      $("changes-histogram").closest("figure").remove();
      if (!entries.length || !metrics.length) return false;
    }
    const names = entries.map((entry) => [entry, data.entries[entry]]);
    const rivals = entries.filter((entry) => !data.reference[entry]);
    // A is the best and B the baseline, so that improvements are positive.
    pair.b = data.baseline ?? rivals[1] ?? entries.find((entry) => entry !== rivals[0]) ?? entries[0];
    pair.a = rivals.find((entry) => entry !== pair.b) ?? entries.find((entry) => entry !== pair.b) ?? pair.b;
    for (const [kind, other] of [["a", "b"], ["b", "a"]])
      for (const select of document.querySelectorAll(`.choose-${kind}`)) {
        setOptions(select, names, pair[kind]);
        select.addEventListener("change", () => {
          const next = { ...pair, [kind]: Number(select.value) };
          if (next.a === next.b) next[other] = pair[kind]; // the user chose the other's ranker: swap
          choosePair(next.a, next.b);
        });
      }
    if (!$("changes-metric")) return true;
    setOptions($("changes-metric"), metrics.map(({ metric }) => [metric, data.metrics[metric]]), data.primary);
    $("changes-metric").addEventListener("change", () => choosePair(pair.a, pair.b));
    $("swap").addEventListener("click", () => choosePair(pair.b, pair.a));
    showChanges();
    return true;
  }

  // ---------------------------------------------------------------- start, one section at a time

  /** Mark the link of the section that is in view. */
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
  const starts = [startOverview, startCurves, startRelaxed, startPair, startInspector];
  (function startNext() {
    const start = starts.shift();
    if (start) { start(); colorSwatches(); setTimeout(startNext, 0); } // in between, the page reacts to the user
    else root.dataset.ready = "true";
  })();
})();

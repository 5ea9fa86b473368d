// The report's script: it draws what the page's data say. Text from runs is only ever set as text.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const $ = (id) => document.getElementById(id);
  const SHOWN = 6; // rankers drawn at first
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
  /** What is under a name that a run chose: `__proto__` is a name like any other. */
  const under = (object, name) => (Object.hasOwn(object, name) ? object[name] : undefined);
  const count = (number) => number.toLocaleString("en");
  const signed = (value, digits = 4) =>
    (value > 0 ? "+" : value < 0 ? "−" : "±") + Math.abs(value).toFixed(digits);
  const variable = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const color = (entry) => variable(`--c${entry % 10}`);
  const dash = (entry) => DASHES[Math.floor(entry / 10) % DASHES.length];

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

  /** Things of entries in the order of the table, those that are not compared last. */
  function byOrder(things) {
    const place = new Map(data.order.map((entry, i) => [entry, i]));
    return [...things].sort((a, b) => (place.get(a.entry) ?? 1e9) - (place.get(b.entry) ?? 1e9));
  }

  function colorSwatches() {
    for (const swatch of document.querySelectorAll(".swatch[data-entry]"))
      swatch.style.background = color(Number(swatch.dataset.entry));
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
    if (keep) try { localStorage.setItem("rankgrad-theme", root.dataset.theme); } catch { /* not allowed: not stored */ }
    redraw();
  }

  function startTheme() {
    const system = matchMedia("(prefers-color-scheme: dark)");
    let chosen = null;
    try { chosen = localStorage.getItem("rankgrad-theme"); } catch { /* not allowed */ }
    theme(chosen ? chosen === "dark" : system.matches, false);
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
      if (a === null || b === null) return (a === null) - (b === null); // empty cells stay below
      if (typeof a === "number" && typeof b === "number") return sign * (a - b);
      return sign * String(a).localeCompare(String(b), "en", { numeric: true });
    });
    table.tBodies[0].append(...rows.map(([row]) => row));
    for (const other of table.tHead.rows[0].cells) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", direction);
    $("said").textContent = `Sorted by ${head.textContent.trim()}, ${direction}`;
  }

  /** Say that a table goes on to the right, where it does. */
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
          const now = head.getAttribute("aria-sort");
          const first = head.dataset.kind === "number" ? "descending" : "ascending";
          const second = first === "ascending" ? "descending" : "ascending";
          sortBy(table, head, now === first ? second : first);
        });
    const main = document.querySelector("#comparison th.main");
    if (main) main.setAttribute("aria-sort", data.lower[data.primary] ? "ascending" : "descending");
  }

  // ---------------------------------------------------------------- overview

  /** A name as a tick label, cut, as the table has it in full; with a text under it. */
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
    const at = Number($("overview-metric").value), metric = data.metrics[at], lower = data.lower[at];
    const sign = lower ? 1 : -1;
    const rows = data.means[at].map((values, entry) => ({ entry, values, tint: () => color(entry) })).filter((row) => row.values);
    rows.sort((a, b) => sign * (a.values[0] - b.values[0]));
    const toward = lower ? "lower is better" : "higher is better";
    dotChart("overview-means", rows,
      { title: `${metric}, ${toward}`, short: metric, hover: (mean, low, high) => `${mean.toFixed(4)} (${low.toFixed(4)} to ${high.toFixed(4)})` },
      `Mean ${metric} with 95% intervals over queries: ${rows.slice(0, 8).map((row) => `${data.entries[row.entry]} ${row.values[0].toFixed(4)}`).join(", ")}.`);
    showDifferences(at);
    showTime(rows, metric, toward);
  }

  function showDifferences(at) {
    const metric = data.metrics[at], tested = data.differences[at];
    const other = data.means[at].findIndex((values, entry) => values && !data.reference[entry] && !tested.some((one) => one.entry === entry));
    if (!tested.length) return empty("overview-differences", "There are no two rankers to test.");
    const sign = data.lower[at] ? 1 : -1;
    const p = (value) => (value === null ? "not tested" : value < 1e-4 ? "p < 0.0001" : `p = ${value.toFixed(4)}`);
    const tint = (one) => () => variable(!one.significant ? "--soft" : one.better ? "--win" : "--loss");
    const rows = tested.map((one) => ({ entry: one.entry, values: one.difference, text: p(one.p) + (one.significant ? (one.better ? " ‡" : " †") : ""), tint: tint(one) }));
    rows.sort((a, b) => sign * (a.values[0] - b.values[0]));
    const name = other >= 0 ? data.entries[other] : "the reference";
    dotChart("overview-differences", rows,
      { title: `difference in ${metric} from ${shortened(name)}`, short: `difference in ${metric}`, hover: (mean, low, high) => `${signed(mean)} (${signed(low)} to ${signed(high)})`, xaxis: { zeroline: true } },
      `Differences in ${metric} from ${name}, with 95% intervals and corrected p-values; † significantly worse, ‡ better: ${rows.slice(0, 6).map((row) => `${data.entries[row.entry]} ${signed(row.values[0])} (${row.text})`).join(", ")}.`);
  }

  function showTime(rows, metric, toward) {
    const timed = rows.filter((row) => data.seconds[row.entry] !== null && data.seconds[row.entry] > 0);
    if (!timed.length) return empty("overview-time", "No run says how long training took.");
    const wide = Math.max(...timed.map((row) => data.seconds[row.entry])) > 20 * Math.min(...timed.map((row) => data.seconds[row.entry]));
    draw("overview-time", () => [
      timed.map(({ entry, values }, i) => ({
        type: "scatter", mode: "markers+text", x: [data.seconds[entry]], y: [values[0]], text: [literal(shortened(data.entries[entry], 22))], textposition: i % 2 ? "bottom left" : "top left", textfont: { size: 11, color: variable("--soft") }, cliponaxis: false,
        marker: { color: color(entry), size: 12, symbol: data.trees[entry] ? "square" : "circle" },
        hovertemplate: `<b>${literal(shortened(data.entries[entry]))}</b><br>%{x:.1f} seconds, %{y:.4f}<extra></extra>`,
      })),
      layout(["seconds of training a run", metric], { xaxis: wide ? { type: "log", dtick: 1 } : { rangemode: "tozero" } }),
    ], `Mean seconds of training a run against ${metric} (${toward}), without any search for values: ${timed.slice(0, 8).map((row) => `${data.entries[row.entry]} ${data.seconds[row.entry].toFixed(1)} s`).join(", ")}.`);
  }

  function startOverview() {
    if (!data.order.length || !data.metrics.length) {
      for (const part of document.querySelectorAll("#overview .controls, #overview h3, #overview figure")) part.remove();
      $("overview").append(make("p", { class: "lead" }, "There is nothing to show: no ranker has all of its runs."));
      return;
    }
    options($("overview-metric"), data.metrics.map((metric, i) => [i, metric]), data.primary);
    $("overview-metric").addEventListener("change", showOverview);
    showOverview();
  }

  // ---------------------------------------------------------------- learning curves

  const visible = new Set();

  /** A band and its mean; dotted from the epoch on at which the first run had stopped. */
  function bandTraces(line, entry, ends, name, style = {}) {
    const tint = style.color ?? color(entry);
    const shape = style.dash ?? dash(entry);
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
    const some = trees.some((own) => visible.has(own.entry) && under(own.lines, $("curve-metric").value));
    $("tree-figure").hidden = !some;
    if (some) showPanel("tree-chart", "tree", trees);
  }

  /** Where a line is best. */
  function bestAt(means, lower) {
    let at = 0;
    means.forEach((v, i) => { if (v !== null && (means[at] === null || (lower ? v < means[at] : v > means[at]))) at = i; });
    return at;
  }

  /** A range for the values of lines, cut where early epochs are far from all that follows; or null. */
  function cutRange(lines, lower) {
    const later = lines.flatMap((line) => line.mean.slice(Math.min(line.mean.length - 1, Math.max(1, Math.floor(line.mean.length / 10))))).filter((v) => v !== null);
    const all = lines.flatMap((line) => line.mean).filter((v) => v !== null);
    if (!later.length) return null;
    const [low, high] = [Math.min(...later), Math.max(...later)];
    const height = Math.max(high - low, 1e-6);
    const spoiled = lower ? Math.max(...all) > high + 1.5 * height : Math.min(...all) < low - 1.5 * height;
    if (!spoiled) return null;
    return lower ? [Math.min(...all) - 0.08 * height, high + 0.25 * height] : [low - 0.25 * height, Math.max(...all) + 0.08 * height];
  }

  function showPanel(id, unit, all) {
    const metric = $("curve-metric").value;
    const series = byOrder(all).filter((own) => visible.has(own.entry) && under(own.lines, metric));
    const label = metric === "loss" ? "training loss" : `validation ${metric}`;
    const at = data.metrics.indexOf(metric);
    const lower = metric === "loss" || (at >= 0 && data.lower[at]);
    const marks = series.map((own) => {
      const line = under(own.lines, metric), best = bestAt(line.mean, lower);
      return { own, epoch: line.epoch[best], mean: line.mean[best] };
    });
    const best = marks.map(({ own, epoch, mean }) => `${data.entries[own.entry]} ${mean?.toFixed(4)} at ${unit} ${epoch}`);
    const said = best.slice(0, 8).join("; ") + (best.length > 8 ? "; …" : "");
    const range = cutRange(series.map((own) => under(own.lines, metric)), lower);
    const cut = range ? " Early values are outside of the chart." : "";
    draw(
      id,
      () => [
        [
          ...series.flatMap((own) => bandTraces(under(own.lines, metric), own.entry, own.ends, data.entries[own.entry], { unit, opacity: own.over === "folds" ? 0.06 : 0.16 })),
          ...marks.map(({ own, epoch, mean }) => ({
            type: "scatter", mode: "markers", x: [epoch], y: [mean], marker: { symbol: "diamond", size: 11, color: color(own.entry), line: { color: variable("--paper"), width: 1.5 } },
            hovertemplate: `<b>${literal(shortened(data.entries[own.entry]))}</b><br>best: ${unit} %{x}, %{y:.4f}<extra></extra>`,
          })),
        ],
        layout([unit, label], range ? { yaxis: { range, autorange: false } } : {}),
      ],
      series.length ? `${label}, ${lower ? "lowest" : "highest"} mean: ${said}.${cut}` : "No ranker is chosen."
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
    sorted.slice(0, SHOWN).forEach((own) => visible.add(own.entry));
    for (const own of sorted) {
      const chip = make("button", { type: "button", class: "chip", "aria-pressed": String(visible.has(own.entry)) },
        make("span", { class: "swatch", "data-entry": own.entry, "aria-hidden": "true" }), data.entries[own.entry]);
      chip.addEventListener("click", () => {
        const on = !visible.has(own.entry);
        if (on) visible.add(own.entry); else visible.delete(own.entry);
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
    const tint = color(own.entry), name = literal(shortened(data.entries[own.entry]));
    const last = own.relaxed.mean.length - 1;
    const size = own.relaxed.mean.map((_, i) => (i === last ? 12 : 4));
    return {
      type: "scatter", mode: "lines+markers", x: own.relaxed.mean, y: own.exact.mean, customdata: own.relaxed.epoch,
      line: { color: faded(tint, 0.55), width: 1.6 }, marker: { color: tint, size },
      hovertemplate: `<b>${name}</b><br>epoch %{customdata}<br>relaxed %{x:.4f}, exact %{y:.4f}<extra></extra>`,
    };
  }

  function showRelaxed() {
    const own = data.relaxed.find((one) => String(one.entry) === $("relaxed-entry").value);
    const last = (values) => values[values.length - 1];
    const ends = Math.max(...own.relaxed.epoch);
    draw(
      "relaxed-epochs",
      () => [
        [
          ...bandTraces(own.relaxed, own.entry, ends, "relaxed, training", { color: variable("--loss"), dash: "dash" }),
          ...bandTraces(own.exact, own.entry, ends, `exact ${own.exact_metric}, validation`, { color: variable("--win"), dash: "solid" }),
        ],
        layout(["epoch", `relaxed ${own.metric} (training)\nexact ${own.exact_metric} (validation)`]),
      ],
      `${data.entries[own.entry]}: relaxed ${own.metric} in training (dashed, orange) went from ${own.relaxed.mean[0]?.toFixed(4)} to ${last(own.relaxed.mean)?.toFixed(4)}; exact ${own.exact_metric} in validation (solid, blue) from ${own.exact.mean[0]?.toFixed(4)} to ${last(own.exact.mean)?.toFixed(4)}.`
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
    const names = most.map((own) => `${data.entries[own.entry]} (relaxed ${own.metric}, exact ${own.exact_metric})`).join(", ");
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
      make("span", { class: "swatch", "data-entry": own.entry, "aria-hidden": "true" }), ` ${data.entries[own.entry]}`)));
    options($("relaxed-entry"), sorted.map((own) => [own.entry, data.entries[own.entry]]), sorted[0].entry);
    $("relaxed-entry").addEventListener("change", showRelaxed);
    showRelaxed();
  }

  // ---------------------------------------------------------------- wins and losses

  const pair = { a: null, b: null };
  const unpacked = new Map();

  /** The values of a entry's queries for one packed metric; NaN where a query is left out. */
  function values(packed, entry) {
    const key = `${packed.metric}/${entry}`;
    if (!unpacked.has(key)) {
      const text = packed.values[entry];
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
    const packed = data.changes.metrics.find((one) => String(one.metric) === $("changes-metric").value);
    const found = packed ? differences(packed) : null;
    if (!found || pair.a === pair.b) {
      const why = pair.a === pair.b ? "A and B are the same: choose two rankers." : "One of the two has no values of this metric.";
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
      `The queries sorted by the change in ${metric} from B to A; from ${found.length ? signed(found[0][1]) : 0} down to ${found.length ? signed(found[found.length - 1][1]) : 0}.${sample} Click one to inspect it, where its list is saved.`);
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

  const saved = data.lists;
  const arrays = saved.queries.length ? {
    items: unpack(saved.items, Uint32Array), scores: unpack(saved.scores, Float32Array),
    codes: unpack(saved.codes, Uint16Array), values: unpack(saved.values, Float32Array),
  } : null;

  const listMetric = () => Number($("changes-metric")?.value || data.primary);
  const slot = (entry) => saved.entries.indexOf(entry);
  const valueOf = (entry, query, metric) =>
    arrays.values[(slot(entry) * saved.queries.length + query) * data.metrics.length + metric];

  function changeOf(query) {
    const metric = listMetric(), sign = data.lower[metric] ? -1 : 1;
    return sign * (valueOf(pair.a, query, metric) - valueOf(pair.b, query, metric));
  }

  const queryName = (query) => {
    const { qid, fold } = saved.queries[query];
    return data.folds.length > 1 ? `${qid} (${data.folds[fold]})` : qid;
  };

  function fillQueries() {
    const now = $("query").value;
    const wanted = $("query-search").value.trim().toLowerCase();
    const rows = saved.queries.map((_, query) => [query, changeOf(query)])
      .filter(([query]) => queryName(query).toLowerCase().includes(wanted))
      .sort(([, x], [, y]) => (Math.abs(y) || 0) - (Math.abs(x) || 0));
    const still = rows.some(([query]) => String(query) === now);
    options($("query"), rows.map(([query, change]) => [query, `${signed(change || 0, 3)}  ${queryName(query)}`]), still ? now : rows[0]?.[0]);
    showLists();
  }

  function ranking(entry, query) {
    const top = saved.top, start = (slot(entry) * saved.queries.length + query) * top;
    const rows = [];
    for (let i = start; i < start + Math.min(top, saved.queries[query].items); i++)
      rows.push({ item: arrays.items[i], score: arrays.scores[i], label: saved.labels[arrays.codes[i]] });
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

  function listTable(letter, entry, query, others, most) {
    const metric = listMetric(), rows = ranking(entry, query);
    const value = valueOf(entry, query, metric), seed = saved.seeds[slot(entry)];
    const ranks = new Map(others.map((row, i) => [row.item, i + 1]));
    const heads = ["#", "label", "item", "score", `vs ${letter === "A" ? "B" : "A"}`];
    const body = rows.map((row, i) => make("tr", { "data-item": row.item },
      make("th", { scope: "row" }, String(i + 1)), make("td", {}, grade(row.label, most)), make("td", {}, String(row.item)),
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
    const most = saved.labels.reduce((high, label) => Math.max(high, label), 0);
    const inside = !about.items ? "none of any label" : about.labels.map(([label, number]) => `${count(number)} with label ${label}`).join(", ");
    $("query-about").replaceChildren(
      make("p", { class: "about" }, make("b", {}, `Query ${queryName(query)}`), `: ${count(about.items)} items, ${inside}. Change in ${data.metrics[listMetric()]} from B to A: ${signed(changeOf(query) || 0)}.`));
    $("list-a").replaceChildren(listTable("A", pair.a, query, ranking(pair.b, query), most));
    $("list-b").replaceChildren(listTable("B", pair.b, query, ranking(pair.a, query), most));
    showWhy(query);
  }

  // ---------------------------------------------------------------- why an item stands above another

  const asked = { entry: null, upper: null, lower: null }; // what was last chosen by hand

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
    const { queries, problems } = saved.explained;
    const here = [...new Set([pair.a, pair.b])].filter((entry) => queries[entry]?.[query]?.pairs.length);
    if (!here.length) {
      const some = Object.keys(queries).length > 0;
      const why = some
        ? "Why an item stands above another is not explained for this query and these two."
        : "To see here why an item stands above another, keep explanations: rankgrad explain RUN DATA --save.";
      return $("why").replaceChildren(...[why, ...problems].map((text) => make("p", { class: "about" }, text)));
    }
    const entry = here.includes(asked.entry) ? asked.entry : here[0];
    const own = queries[entry][query], first = firstMistake(own, ranking(entry, query));
    const upper = own.pairs.some((one) => one[0] === asked.upper) ? asked.upper : first[0];
    const shown = own.pairs.find((one) => one[0] === upper && one[1] === asked.lower)
      ?? (upper === first[0] ? first : own.pairs.find((one) => one[0] === upper));
    const named = (rank) => `item ${own.items[rank]} (rank ${rank + 1})`;
    const uppers = [...new Set(own.pairs.map((one) => one[0]))];
    const lowers = own.pairs.filter((one) => one[0] === upper).map((one) => one[1]);
    $("why").replaceChildren(
      make("h3", {}, "Why one item stands above another"),
      make("div", { class: "controls" },
        choice("In", here.map((one) => [one, `${one === pair.a ? "A" : "B"}: ${data.entries[one]}`]), entry, (value) => { asked.entry = Number(value); }),
        choice("why", uppers.map((rank) => [rank, named(rank)]), upper, (value) => { asked.entry = entry; asked.upper = Number(value); }),
        choice("above", lowers.map((rank) => [rank, named(rank)]), shown[1], (value) => { asked.entry = entry; asked.upper = upper; asked.lower = Number(value); })),
      whyTable(entry, own, shown));
  }

  function whyTable(entry, own, [upper, lower, difference, baseline, parts]) {
    const rest = difference - baseline - parts.reduce((sum, [, value]) => sum + value, 0);
    const most = Math.max(...parts.map(([, value]) => Math.abs(value)), Math.abs(rest), Math.abs(baseline), 1e-12);
    const bar = (value) => make("span", { class: `part ${value < 0 ? "down" : "up"}`, style: `width: ${(100 * Math.abs(value)) / most}%`, "aria-hidden": "true" });
    const number = (value) => (value === null ? "–" : String(value));
    const row = (name, values, value, drawn) => make("tr", {}, make("th", { scope: "row" }, name),
      ...values.map((one) => make("td", {}, one)), make("td", {}, signed(value)), make("td", { class: "bars" }, ...(drawn ? [bar(value)] : [])));
    const names = saved.explained.features[entry];
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
      const which = seeds.length === 1 ? `seed ${seeds[0]}` : "each ranker's first seed";
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
      const why = "Two rankers with evaluations are needed to compare queries.";
      document.querySelector("#changes .controls").remove();
      empty("changes-sorted", why);
      $("changes-histogram").closest("figure").remove();
      if (!usable.length || !metrics.length) return false;
    }
    const names = usable.map((entry) => [entry, data.entries[entry]]);
    const rivals = usable.filter((entry) => !data.reference[entry]);
    // The best is A and the baseline B, so that gains have a plus.
    pair.b = data.baseline ?? rivals[1] ?? usable.find((entry) => entry !== rivals[0]) ?? usable[0];
    pair.a = rivals.find((entry) => entry !== pair.b) ?? usable.find((entry) => entry !== pair.b) ?? pair.b;
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
  const parts = [startOverview, startCurves, startRelaxed, startPair, startInspector];
  (function next() {
    const part = parts.shift();
    if (part) { part(); colorSwatches(); setTimeout(next, 0); } // between parts the page can be used
    else root.dataset.ready = "true";
  })();
})();

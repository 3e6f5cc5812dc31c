// Plots are drawn when they come into view, and drawn again when the reader changes something.
const plots = new Map(); // element -> {block, drawn}
const AXES = { step: "step", tokens: "generated tokens", time: "" };
const coarse = matchMedia("(pointer: coarse)").matches;

const inView = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    const held = plots.get(entry.target);
    if (held) {
      held.visible = entry.isIntersecting;
      if (held.visible && held.stale) queue(entry.target);
    }
  }
}, { rootMargin: "400px 0px" });

function plotElement(block) {
  const element = h("div", { class: "plot", role: "img", "aria-label": `${block.title}. ${block.caption}` });
  element.style.height = `${block.height}px`;
  plots.set(element, { block, stale: true, visible: false, hidden: new Set() });
  inView.observe(element);
  return element;
}

function updatePlot(element, block) {
  const held = plots.get(element);
  held.block = block;
  redraw(element);
}

function redraw(element) {
  const held = plots.get(element);
  held.stale = true;
  if (held.visible) queue(element);
}

// One plot a frame, in the order of the page: the first screen does not wait for the second.
const waiting = new Set();

function queue(element) {
  if (!waiting.size && window.Plotly) requestAnimationFrame(drawNext);
  waiting.add(element);
}

// Plotly is large: the words of the page are on the screen before it is read.
function loadPlotly() {
  if (window.Plotly) return; // whoever prints at once does not wait for it
  const script = document.createElement("script");
  script.textContent = document.getElementById("plotly").textContent;
  document.head.append(script);
  // A picture is taken when its time is up, however few frames there were.
  if ("picture" in document.documentElement.dataset) [...plots.keys()].forEach(draw);
  else if (waiting.size) drawNext();
}

function drawNext() {
  const [element] = waiting;
  waiting.delete(element);
  if (waiting.size) requestAnimationFrame(drawNext);
  const held = plots.get(element);
  if (held && held.stale && held.visible) draw(element);
}

// Paper is white, as wide as it is, and shows what nobody has scrolled to.
let printing = false;

function toPaper(on) {
  printing = on;
  document.documentElement.toggleAttribute("data-printing", on);
  applyTheme();
  if (!on) return;
  loadPlotly();
  for (const element of plots.keys()) if (element.clientWidth) draw(element); // others are folded
}

function redrawAll() {
  for (const element of plots.keys()) redraw(element);
}

function dropPlots(root) {
  for (const element of root.querySelectorAll(".plot")) {
    inView.unobserve(element);
    plots.delete(element);
    if (window.Plotly) Plotly.purge(element);
  }
}

function draw(element) {
  const held = plots.get(element);
  held.stale = false;
  const made = held.block.figure ? held.block.figure(element) : figure(held.block, held.hidden);
  const config = { responsive: true, displaylogo: false, displayModeBar: coarse ? false : "hover",
    modeBarButtons: [held.block.figure ? ["toImage"] : ["toImage", "resetScale2d"]] };
  Plotly.react(element, made.data, made.layout, config);
}

function figure(block, hidden) {
  const data = block.traces.flatMap((trace, place) => resolve(trace, hidden.has(place)));
  const layout = baseLayout(block);
  const theme = THEMES[themeName()];
  if (block.share) layout.yaxis.tickformat = ".3~p";
  else layout.yaxis.exponentformat = block.y === "tokens" ? "SI" : "e";
  const stacked = block.traces.some((trace) => trace.stackgroup);
  const ends = stacked ? block.share && [0, 1] : reach(data, block.share);
  if (ends) layout.yaxis.range = ends;
  if (!block.x && state.axis === "step") { // there is no step 1.5
    const along = data.flatMap((trace) => trace.x || []);
    const ends = [Math.min, Math.max].map((end) => along.reduce((a, b) => end(a, b), along[0]));
    if (ends[1] - ends[0] <= 8) Object.assign(layout.xaxis, { tick0: 0, dtick: 1 });
  }
  for (const key of ["xaxis", "yaxis"]) Object.assign(layout[key], block.layout[key] || {});
  layout.shapes = (block.layout.shapes || []).map((shape) => (
    { ...shape, line: { ...shape.line, color: theme.text } }));
  return { data, layout };
}

// Plotly puts a flat curve in the middle of -1 to 1, and lets shares leave 0 to 100 %.
function reach(data, share) {
  const shown = data.filter((trace) => trace.visible !== false && trace.type === "scatter");
  const found = shown.flatMap((trace) => trace.y).filter((value) => typeof value === "number");
  if (!found.length) return null;
  let low = found.reduce((a, b) => Math.min(a, b)), high = found.reduce((a, b) => Math.max(a, b));
  const inside = share && low >= 0 && high <= 1;
  if (low < high && !inside) return null;
  const room = inside ? Math.max(0.02, (high - low) * 0.06) : Math.abs(low) * 0.1 || 1;
  const top = inside ? Math.min(1.005, high + room) : high + room;
  const least = low === 0 ? -0.03 * top : low > 0 ? 0 : -Infinity; // a line at 0 is not on the frame
  return [Math.max(low - room, least), top];
}

function baseLayout(block) {
  const theme = THEMES[themeName()];
  const axis = { gridcolor: theme.grid, linecolor: theme.line, zeroline: false,
    fixedrange: coarse, title: { standoff: 6 } };
  const along = block.x || (state.axis === "time" ? `${content.unit} of training` : AXES[state.axis]);
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false,
    font: { family: "system-ui, sans-serif", size: 12, color: theme.soft },
    margin: { l: block.y ? 66 : 54, r: 14, t: 8, b: 42 }, // fixed: plotly need not draw twice to find them
    height: block.height, autosize: true,
    hovermode: block.traces.length > 8 || block.x ? "closest" : "x unified",
    hoverlabel: { bgcolor: theme.card, bordercolor: theme.line, font: { color: theme.text, size: 12 } },
    dragmode: coarse ? false : "zoom",
    modebar: { bgcolor: "rgba(0,0,0,0)", color: theme.soft, activecolor: theme.text },
    uirevision: `${block.id} ${block.x ? "" : state.axis} ${state.run}`,
    xaxis: { ...axis, title: { text: along, standoff: 6 } },
    yaxis: { ...axis, title: { text: block.y, standoff: 6 } },
  };
}

function resolve(trace, off) {
  const { axis, colour: name, run, smooth, there_and_back: folded, thin, group, ...rest } = trace;
  const made = { ...rest };
  if (axis) {
    made.x = content.axes[axis][state.axis];
    if (folded) made.x = [...made.x, ...[...made.x].reverse()];
  }
  if (off || (run !== undefined && state.hidden.has(run))) made.visible = false;
  // Plotly reads some markup in its texts; names come from strangers.
  if (made.name) made.name = plain(made.name);
  if (Array.isArray(made.y)) made.y = made.y.map((value) => (typeof value === "string" ? plain(value) : value));
  if (trace.type === "heatmap") {
    const theme = THEMES[themeName()];
    return [{ ...made, colorscale: theme.heat, showscale: innerWidth > 600,
      colorbar: { thickness: 10, tickformat: ".0%", outlinewidth: 0 } }];
  }
  const tint = colour(name);
  made.line = { width: thin ? 0.6 : 2, ...trace.line, color: tint };
  made.marker = { size: 6, ...trace.marker, color: tint };
  if (group) made.legendgroup = group;
  if (trace.stackgroup) made.fillcolor = faint(tint, 0.75);
  const bar = trace.type === "bar" && made.error_y && made.error_y.visible;
  if (bar) made.marker.opacity = 0.7; // or the lower half of a whisker would not be seen on it
  const whiskers = bar ? colour("text") : tint;
  for (const side of ["error_x", "error_y"]) if (made[side]) made[side] = { ...made[side], color: whiskers };
  if (trace.fill) return [{ ...made, line: { width: 0 }, fillcolor: faint(tint, 0.16) }];
  if (!(smooth && state.smooth && made.y.length >= 20)) return [made];
  const raw = { ...made, line: { ...made.line, width: 1 }, opacity: 0.3, hoverinfo: "skip" };
  return [raw, { ...made, y: movingAverage(made.y, Math.ceil(made.y.length / 25)) }];
}

function plain(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

function movingAverage(values, reach) {
  const sums = [0], counts = [0];
  values.forEach((value, place) => {
    sums.push(sums[place] + (value ?? 0));
    counts.push(counts[place] + (value === null ? 0 : 1));
  });
  return values.map((_, place) => {
    const from = Math.max(0, place - reach), to = Math.min(values.length, place + reach + 1);
    const count = counts[to] - counts[from];
    return count ? (sums[to] - sums[from]) / count : null;
  });
}

function legend(element, block) {
  const held = plots.get(element);
  return h("div", { class: "legend", role: "group", "aria-label": "Show or hide" },
    ...block.traces.flatMap((trace, place) => {
      if (!trace.name || trace.showlegend === false) return [];
      const swatch = h("span", { class: "swatch", "data-colour": trace.colour });
      swatch.style.background = colour(trace.colour);
      const button = h("button", { type: "button", "aria-pressed": "true" }, swatch, trace.name);
      button.onclick = () => {
        const off = !held.hidden.delete(place);
        if (off) held.hidden.add(place);
        button.setAttribute("aria-pressed", String(!off));
        redraw(element);
      };
      return [button];
    }));
}

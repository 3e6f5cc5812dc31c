// Where prompts moved between tiers: ribbons between steps, and counts from one step to another.
function movesElement(block) {
  const root = h("div", { class: "block wide", "data-block": block.id }, h("h3", {}, block.title),
    h("p", { class: "caption" }, block.caption));
  let held = block;
  const from = h("select", { "aria-label": "from step" }), to = h("select", { "aria-label": "to step" });
  const body = h("tbody", {}), head = h("tr", {});
  const shown = { ...block, height: 360, figure: (element) => sankey(held, picked(), element) };
  const chart = plotElement(shown);

  const picked = () => {
    const a = held.steps.indexOf(Number(from.value)), b = held.steps.indexOf(Number(to.value));
    return a < b ? [a, b] : b < a ? [b, a] : a ? [a - 1, a] : [0, 1];
  };
  const fill = () => {
    const end = held.steps[held.steps.length - 1];
    const before = [from.value || held.steps[0], state.followEnd ? end : to.value || end];
    for (const [select, value] of [[from, before[0]], [to, before[1]]]) {
      select.replaceChildren(...held.steps.map((step) => h("option", { value: step }, `step ${step}`)));
      select.value = held.steps.includes(Number(value)) ? value : select === from ? held.steps[0] : end;
    }
    show();
  };
  const show = () => {
    const [a, b] = picked();
    const counts = held.counts[`${a}-${b}`], size = held.states.length;
    head.replaceChildren(h("th", { scope: "col" }, `step ${held.steps[a]} to ${held.steps[b]}`),
      ...held.states.map((name) => h("th", { scope: "col" }, name)));
    body.replaceChildren(...held.states.map((name, row) => h("tr", {}, h("th", { scope: "row" }, `from ${name}`),
      ...held.states.map((_, column) => h("td", {}, counts[row * size + column].toLocaleString("en"))))));
    redraw(chart);
  };
  from.onchange = show;
  to.onchange = () => { state.followEnd = Number(to.value) === held.steps[held.steps.length - 1]; show(); };
  root.append(h("div", { class: "moves" }, h("label", {}, "From", from), h("label", {}, "to", to)), chart,
    h("div", { class: "scroll" }, h("table", {}, h("thead", {}, head), body)));
  root.update = (next) => { held = next; fill(); };
  fill();
  return root;
}

function sankey(block, [first, last], element) {
  const theme = THEMES[themeName()];
  const columns = spread(first, last, element.clientWidth < 420 ? 2 : element.clientWidth < 700 ? 3 : 5);
  const size = block.states.length;
  const order = ["hard", "medium", "easy", "not drawn yet"].map((name) => block.states.indexOf(name)) // as in the heatmap
    .filter((code) => code >= 0);
  const node = { label: [], color: [], x: [], y: [], pad: 10, thickness: 14, line: { width: 0 } };
  const link = { source: [], target: [], value: [], color: [] };
  const places = columns.map((column, index) => {
    const totals = tierTotals(block, columns, index, size);
    const whole = totals.reduce((a, b) => a + b, 0) || 1;
    let above = 0;
    const found = new Map();
    for (const code of order) {
      if (!totals[code]) continue;
      found.set(code, node.label.length);
      const roomy = totals[code] / whole > 0.035; // labels of slivers would cover each other
      node.label.push(roomy ? `${block.states[code]} ${totals[code].toLocaleString("en")}` : "");
      node.color.push(colour(block.states[code]));
      node.x.push(Math.min(0.999, Math.max(0.001, index / (columns.length - 1))));
      node.y.push(Math.min(0.999, Math.max(0.001, (above + totals[code] / 2) / whole)));
      above += totals[code];
    }
    return found;
  });
  for (let index = 0; index + 1 < columns.length; index++) {
    const counts = block.counts[`${columns[index]}-${columns[index + 1]}`];
    counts.forEach((value, place) => {
      if (!value) return;
      const [row, column] = [Math.floor(place / size), place % size];
      link.source.push(places[index].get(row));
      link.target.push(places[index + 1].get(column));
      link.value.push(value);
      link.color.push(faint(colour(block.states[row]), 0.35));
    });
  }
  const annotations = columns.map((column, index) => ({ text: `step ${block.steps[column]}`, showarrow: false,
    xref: "paper", yref: "paper", x: index / (columns.length - 1), y: 0, yanchor: "top", yshift: -6,
    xanchor: index === 0 ? "left" : index === columns.length - 1 ? "right" : "center" }));
  const data = [{ type: "sankey", arrangement: "fixed", node, link, textfont: { color: theme.text, size: 12 } }];
  return { data, layout: { paper_bgcolor: "rgba(0,0,0,0)", height: block.height || 360, autosize: true, annotations,
    margin: { l: 4, r: 4, t: 8, b: 30 }, font: { family: "system-ui, sans-serif", size: 12, color: theme.soft },
    hoverlabel: { bgcolor: theme.card, bordercolor: theme.line, font: { color: theme.text } } } };
}

function tierTotals(block, columns, index, size) {
  const forward = index + 1 < columns.length;
  const [a, b] = forward ? [columns[index], columns[index + 1]] : [columns[index - 1], columns[index]];
  const counts = block.counts[`${a}-${b}`];
  return block.states.map((_, code) => block.states.reduce((sum, __, other) => (
    sum + counts[forward ? code * size + other : other * size + code]), 0));
}

function spread(first, last, most) {
  const count = Math.min(most, last - first + 1);
  const places = Array.from({ length: count }, (_, i) => Math.round(first + (i * (last - first)) / (count - 1)));
  return [...new Set(places)];
}

// The page: sections of blocks, built from the content, and the controls above them.
const state = { theme: remembered(), axis: "step", smooth: true, run: 0, hidden: new Set(), open: new Set(),
  followEnd: true, filters: { tier: "all", outcome: "all", length: "all", kind: "all", order: "new", text: "" } };
let content = null;

function h(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children.map((child) => (child instanceof Node ? child : String(child))));
  return element;
}

function start() {
  document.documentElement.dataset.theme = themeName();
  content = JSON.parse(document.getElementById("content").textContent);
  build();
  requestAnimationFrame(() => setTimeout(loadPlotly));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", applyTheme);
  addEventListener("beforeprint", () => toPaper(true));
  addEventListener("afterprint", () => toPaper(false));
  if (document.documentElement.dataset.live === "yes") follow();
}

// Everything anew: at the start, and when a run joins those that are followed.
function build() {
  const page = document.getElementById("page");
  dropPlots(page);
  const main = h("main", {}, ...content.sections.map((section) => h("section", { id: section.id })));
  const theme = h("button", { type: "button", id: "theme", "aria-label": "Light or dark" });
  theme.onclick = () => setTheme(themeName() === "dark" ? "light" : "dark");
  page.replaceChildren(h("header", { class: "top" }, h("h1", {}, `DARE report: ${content.title}`), theme),
    h("p", { class: "soft", id: "written" }), controls(), main);
  applyTheme();
  show();
}

// What stands above and around the sections: with other runs or sections it is another page.
function frame(shown) {
  return JSON.stringify([shown.title, shown.sections.map((section) => section.id), shown.runs]);
}

function show() {
  const [day, time] = new Date(content.written * 1000).toISOString().split("T");
  document.getElementById("written").textContent = `Written ${day} ${time.slice(0, 5)} UTC`;
  content.sections.forEach(showSection);
}

function showSection(section) {
  const root = document.getElementById(section.id);
  const blocks = section.blocks || section.by_run[state.run] || [];
  evened(blocks);
  const all = [...blocks, ...(section.rest || [])];
  const shape = JSON.stringify(all.map((block) => [block.kind, block.id, block.text, (block.traces || []).length]));
  if (root.shape === shape + state.run) {
    const elements = root.querySelectorAll("[data-block]");
    all.filter((block) => block.id).forEach((block, place) => elements[place].update(block));
    return;
  }
  dropPlots(root);
  root.shape = shape + state.run;
  root.replaceChildren(h("h2", {}, section.title), h("p", { class: "intro" }, section.intro));
  if (section.id === "curves" && content.runs.length > 1) root.append(runButtons());
  if (section.by_run && content.runs.length > 1) {
    root.append(h("p", { class: "soft" }, `Run: ${content.runs[state.run].name}`));
  }
  root.append(grid(blocks));
  if (section.rest && section.rest.length) {
    root.append(h("details", { class: "fold" }, h("summary", {}, `${section.rest.length} more logged metrics`),
      grid(section.rest)));
  }
}

// Plots that share a row are as high as the taller of them.
function evened(blocks) {
  let single = null;
  for (const block of blocks) {
    const narrow = block.kind === "plot" && !block.wide;
    if (narrow && single) single.height = block.height = Math.max(single.height, block.height);
    single = narrow && !single ? block : null;
  }
}

// Two panels a row where there is room for them; one without a neighbour takes the row.
function grid(blocks) {
  const elements = blocks.map(blockElement);
  let single = null;
  for (const element of [...elements, null]) {
    const narrow = element && element.matches(".block:not(.wide, .note)");
    if (!narrow && single) single.classList.add("wide");
    single = narrow && !single ? element : null;
  }
  return h("div", { class: "grid" }, ...elements);
}

function blockElement(block) {
  if (block.kind === "note") return h("p", { class: "block note" }, block.text);
  if (block.kind === "moves") return movesElement(block);
  if (block.kind === "samples") return samplesElement(block);
  if (block.kind === "tiles") return tilesElement(block);
  const root = h("div", { class: `block${block.wide || block.kind === "table" ? " wide" : ""}`, "data-block": block.id });
  const caption = h("p", { class: "caption" }, block.caption);
  root.append(h("h3", {}, block.title), caption);
  if (block.kind === "plot") {
    const element = plotElement(block);
    if (block.legend) root.append(legend(element, block));
    root.append(element);
    root.update = (next) => { caption.textContent = next.caption; updatePlot(element, next); };
  } else {
    const holder = h("div", { class: "scroll", tabindex: "0" }, tableElement(block));
    if (block.folded) root.replaceChildren(h("details", {}, h("summary", {}, block.title), holder));
    else root.append(holder);
    root.update = (next) => { caption.textContent = next.caption; holder.replaceChildren(tableElement(next)); };
  }
  return root;
}

function tableElement(block) {
  const head = h("tr", {}, ...block.head.map((cell) => h("th", { scope: "col" }, cell)));
  const rows = block.rows.map((row) => h("tr", {}, h("th", { scope: "row" }, row[0]),
    ...row.slice(1).map((cell) => h("td", {}, cell))));
  return h("table", {}, h("thead", {}, head), h("tbody", {}, ...rows));
}

function tilesElement(block) {
  const root = h("div", { class: "tiles", "data-block": "tiles" });
  root.update = (next) => root.replaceChildren(...next.entries.map(([label, value, word]) => (
    h("div", { class: "tile" }, h("span", {}, label), h("b", {}, value), h("span", {}, word)))));
  root.update(block);
  return root;
}

function controls() {
  const traces = content.sections.flatMap((section) => [section.blocks, section.rest, ...(section.by_run || [])])
    .flatMap((blocks) => blocks || []).flatMap((block) => block.traces || []);
  const parts = []; // what would change nothing is left out
  if (traces.some((trace) => trace.axis)) {
    parts.push(switcher("axis", "Along x", { step: "Steps", tokens: "Tokens", time: "Time" }));
  }
  if (content.runs.length > 1) {
    const select = h("select", { id: "run", "aria-label": "Run shown in detail" },
      ...content.runs.map((run, place) => h("option", { value: place }, run.name)));
    select.value = state.run;
    select.onchange = () => { state.run = Number(select.value); content.sections.forEach(showSection); };
    parts.unshift(h("label", {}, h("span", { class: "wordy" }, "Run"), select));
  }
  const live = h("span", { id: "live", class: "soft", role: "status" });
  const smooth = h("input", { type: "checkbox", id: "smooth" });
  smooth.checked = state.smooth;
  smooth.onchange = () => { state.smooth = smooth.checked; redrawAll(); };
  if (traces.some((trace) => trace.smooth)) parts.push(h("label", {}, smooth, "Smooth"));
  parts.push(live);
  const links = content.sections.map((section) => h("a", { href: `#${section.id}` }, section.title));
  const bar = h("div", { class: "bar" }, h("div", { class: "controls" }, ...parts));
  if (links.length > 1) bar.append(h("nav", { class: "links", "aria-label": "Sections" }, ...links));
  return bar;
}

function switcher(name, label, options) {
  const buttons = Object.entries(options).map(([value, text]) => {
    const button = h("button", { type: "button", "data-value": value, "aria-pressed": String(state[name] === value) }, text);
    button.onclick = () => {
      state[name] = value;
      buttons.forEach((other) => other.setAttribute("aria-pressed", String(other === button)));
      redrawAll();
    };
    return button;
  });
  return h("div", { class: "switch", role: "group", "aria-label": label, id: name }, ...buttons);
}

function runButtons() {
  return h("div", { class: "legend runs", role: "group", "aria-label": "Runs shown" }, ...content.runs.map((run, place) => {
    const swatch = h("span", { class: "swatch", "data-colour": run.colour });
    swatch.style.background = colour(run.colour);
    const button = h("button", { type: "button", "aria-pressed": String(!state.hidden.has(place)) }, swatch, run.name);
    button.onclick = () => {
      const off = !state.hidden.delete(place);
      if (off) state.hidden.add(place);
      button.setAttribute("aria-pressed", String(!off));
      redrawAll();
    };
    return button;
  }));
}

// The browser of rollouts. Whatever the policy wrote goes through textContent: it stays text.
const PAGE = 40;
const KINDS = { plain: "plain", think_longer: "think longer", hinted: "hinted" };

function samplesElement(block) {
  let held = block, most = PAGE;
  const filters = state.filters;
  const count = h("p", { class: "caption", "aria-live": "polite" });
  const list = h("div", {});
  const more = h("button", { type: "button", class: "more" }, "Show more");
  const caption = h("p", { class: "caption" }, block.caption);

  const choice = (name, label, options) => {
    const select = h("select", { "aria-label": label, "data-filter": name },
      ...Object.entries(options).map(([value, text]) => h("option", { value }, text)));
    select.value = filters[name];
    select.onchange = () => { filters[name] = select.value; most = PAGE; show(); };
    return select;
  };
  const search = h("input", { type: "search", placeholder: "Search prompts and responses", "aria-label": "Search" });
  search.value = filters.text;
  let waiting = 0;
  search.oninput = () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => { filters.text = search.value; most = PAGE; show(); }, 120);
  };
  const tier = choice("tier", "Tier", { all: "all tiers", easy: "easy", medium: "medium", hard: "hard" });
  const show = () => {
    tier.hidden = !held.tiers; // off, all prompts are medium by name alone
    const wanted = held.tiers ? filters : { ...filters, tier: "all" };
    const found = sorted(held.rows.filter((row) => passes(row, wanted, held.median)), filters.order);
    count.textContent = `${found.length.toLocaleString("en")} of ${held.rows.length.toLocaleString("en")} match`;
    list.replaceChildren(...found.slice(0, most).map((row) => sampleElement(row, held.tiers)));
    more.hidden = found.length <= most;
  };
  more.onclick = () => { most += PAGE; show(); };
  const root = h("div", { class: "block wide", "data-block": block.id }, caption,
    h("div", { class: "filters" },
      tier,
      choice("outcome", "Outcome", { all: "right and wrong", right: "right", wrong: "wrong", none: "not scored" }),
      choice("length", "Length", { all: "any length", short: "short", long: "long", cut: "cut off" }),
      choice("kind", "Kind of rollout", { all: "with and without help", ...KINDS }),
      choice("order", "Order", { new: "newest first", old: "oldest first", long: "longest first",
        short: "shortest first", hard: "hardest first" }),
      search),
    count, list, more);
  root.update = (next) => { held = next; caption.textContent = next.caption; show(); };
  show();
  return root;
}

function passes(row, filters, median) {
  const middle = median[row.tier];
  if (filters.tier !== "all" && row.tier !== filters.tier) return false;
  if (filters.kind !== "all" && row.kind !== filters.kind) return false;
  if (filters.outcome !== "all" && outcome(row) !== filters.outcome) return false;
  if (filters.length === "short" && !(row.tokens <= middle)) return false;
  if (filters.length === "long" && !(row.tokens > middle)) return false;
  if (filters.length === "cut" && !row.cut) return false;
  const wanted = filters.text.trim().toLowerCase();
  if (!wanted) return true;
  row.searched ??= [row.id, row.prompt, row.response, ...row.hint].join("\n").toLowerCase();
  return row.searched.includes(wanted);
}

function outcome(row) {
  return row.reward === null ? "none" : row.reward >= 1 ? "right" : "wrong";
}

function sorted(rows, order) {
  const keys = { new: (r) => -r.step, old: (r) => r.step, long: (r) => -r.tokens, short: (r) => r.tokens,
    hard: (r) => -r.difficulty };
  return rows.sort((a, b) => keys[order](a) - keys[order](b));
}

function sampleElement(row, tiers) {
  const key = [row.step, row.id, row.kind, row.tokens, row.reward].join(" ");
  const dot = h("i", { "data-colour": row.tier });
  dot.style.background = colour(row.tier);
  const result = outcome(row);
  const words = { right: "\u2713 right", wrong: row.reward > 0 ? `${row.reward} reward` : "\u2717 wrong", none: "not scored" };
  const badge = (text, kind = "") => h("span", { class: `badge ${kind}` }, text);
  const parts = [...(tiers ? [h("span", { class: "badge" }, dot, row.tier)] : []), badge(words[result], result)];
  if (row.kind !== "plain") parts.push(badge(KINDS[row.kind]));
  if (row.cut) parts.push(badge("cut off"));
  const facts = `step ${row.step} \u00b7 ${row.tokens ?? "?"} tokens \u00b7 difficulty ${row.difficulty?.toFixed(2) ?? "?"}`;
  const element = h("details", { class: "sample" }, h("summary", {}, ...parts, h("span", { class: "soft badge" }, facts),
    h("span", { class: "first" }, row.prompt.slice(0, 160))));
  const open = () => {
    if (element.childElementCount > 1) return;
    const hint = row.hint.length && row.kind === "hinted"
      ? [h("h4", {}, "Hint"), h("pre", {}, row.hint.join("\n"))] : [];
    element.append(h("h4", {}, `Prompt ${row.id}`), h("pre", {}, row.prompt), ...hint,
      h("h4", {}, "Response"), h("pre", {}, row.response),
      ...(row.answer ? [h("h4", {}, "Gold answer"), h("pre", {}, row.answer)] : []));
  };
  element.ontoggle = () => {
    if (element.open) { open(); state.open.add(key); } else state.open.delete(key);
  };
  if (state.open.has(key)) { open(); element.open = true; }
  return element;
}

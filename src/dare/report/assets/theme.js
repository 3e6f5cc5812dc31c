// Colours by name, light and dark. Traces say what they are ("easy", "run:2"), not how they look.
const THEMES = {
  light: {
    text: "#1b2330", soft: "#566172", card: "#ffffff", line: "#d9dee6", grid: "#e6e9ef", main: "#1f5fa8",
    easy: "#00876a", medium: "#b87300", hard: "#b0367f", other: "#8b94a3",
    runs: ["#1f5fa8", "#c25700", "#1d8653", "#a63d7a", "#6d58b5", "#00808f", "#7d6b00", "#b3392f"],
    series: ["#1f5fa8", "#d98200", "#1d9a6c", "#b0367f", "#7a66c2", "#3aa0c9", "#8a8f3c", "#8b94a3"],
    scale: [[0, "#8dbfe6"], [0.5, "#3f86c4"], [1, "#0c2d5e"]],
    heat: [[0, "#ffffff"], [0.04, "#e3eef7"], [0.2, "#a9cbe6"], [0.5, "#4a8fc7"], [1, "#0b3b75"]],
  },
  dark: {
    text: "#e7ebf1", soft: "#a3aebd", card: "#181e27", line: "#303947", grid: "#2a323e", main: "#7fb4f0",
    easy: "#3cc79c", medium: "#eeb04a", hard: "#ea86c0", other: "#7d8898",
    runs: ["#7fb4f0", "#f39a4d", "#5bcf94", "#ec8bc3", "#b3a2f2", "#4fc9d6", "#d8c65a", "#f08a7f"],
    series: ["#7fb4f0", "#f3b04d", "#4fcf9f", "#ea86c0", "#b3a2f2", "#67cdec", "#c3c96b", "#9aa5b4"],
    scale: [[0, "#dcecfb"], [0.5, "#6aa9e0"], [1, "#3f76bd"]],
    heat: [[0, "#181e27"], [0.04, "#1c2f45"], [0.2, "#24537f"], [0.5, "#4b98d4"], [1, "#d7efff"]],
  },
};

function remembered() {
  try { return localStorage.getItem("dare-report-theme"); } catch { return null; }
}

function themeName() {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  return printing ? "light" : state.theme || (dark ? "dark" : "light");
}

function setTheme(name) {
  state.theme = name;
  try { localStorage.setItem("dare-report-theme", name); } catch { /* a file may have no storage */ }
  applyTheme();
}

function applyTheme() {
  document.documentElement.dataset.theme = themeName();
  const button = document.getElementById("theme");
  if (button) button.textContent = themeName() === "dark" ? "Light" : "Dark";
  for (const swatch of document.querySelectorAll("[data-colour]")) {
    swatch.style.background = colour(swatch.dataset.colour);
  }
  redrawAll();
}

function colour(name) {
  const theme = THEMES[themeName()];
  const [kind, value] = String(name).split(":");
  if (kind === "run") return theme.runs[Number(value) % theme.runs.length];
  if (kind === "series") return theme.series[Number(value) % theme.series.length];
  if (kind === "scale") return between(theme.scale, Number(value));
  return theme[kind] || theme.other;
}

function channels(hex) {
  return [1, 3, 5].map((place) => parseInt(hex.slice(place, place + 2), 16));
}

function faint(hex, alpha) {
  return `rgba(${channels(hex).join(",")},${alpha})`;
}

function between(stops, place) {
  const above = Math.max(1, stops.findIndex(([at]) => at >= place));
  const [[low, from], [high, to]] = [stops[above - 1], stops[above]];
  const share = (place - low) / (high - low);
  const mixed = channels(from).map((c, i) => Math.round(c + share * (channels(to)[i] - c)));
  return "#" + mixed.map((c) => c.toString(16).padStart(2, "0")).join("");
}

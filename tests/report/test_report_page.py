"""The report in a browser: everything is drawn, everything works, nothing else happens."""

from __future__ import annotations

import json
import re
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from hostile_texts import HOSTILE

from dare.report.blocks import RUN_COLOURS, plot, section
from dare.report.document import page as page_of
from dare.report.document import write_report

SECTIONS = ["overview", "curves", "landscape", "estimator", "levels", "cost", "evaluation",
            "rollouts", "settings"]  # fmt: skip


@pytest.fixture(scope="module")
def file(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("page") / "report.html"
    write_report([str(run)], out)
    return out


@pytest.fixture(scope="module")
def page(file: Path, visit_once) -> Any:
    """One page for tests that each use another part of it."""
    return visit_once(file.as_uri())


@pytest.fixture(scope="module")
def compared(synthetic, run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("several")
    for name, preset, seed in (("a", "grpo", 1), ("b", "grpo", 2), ("c", "dare", 1)):
        synthetic.synthesise(
            root / name, steps=25, prompts=150, drawn=16, words=5, seed=seed, preset=preset
        )
    write_report([str(root), str(run)], root / "report.html")
    return root / "report.html"


def traces(page, name: str) -> list[dict]:
    """Data of the plot in a block, as plotly holds it."""
    script = "(n) => document.querySelector(`[data-block='${n}'] .plot`).data.map((t) => ({...t}))"
    return page.evaluate(script, name)


def until(page, name: str, condition: str) -> None:
    """Wait until a condition on `plot`, the plot in a block, holds."""
    found = f"document.querySelector(`[data-block='{name}'] .plot`)"
    page.wait_for_function(f"() => {{ const plot = {found}; return plot.data && ({condition}); }}")


def test_every_plot_is_drawn(file: Path, visit, synthetic) -> None:
    page = visit(file.as_uri())
    synthetic.draw_all(page)
    sections = page.evaluate("[...document.querySelectorAll('section')].map((s) => s.id)")
    assert sections == SECTIONS
    empty = page.evaluate(
        """[...document.querySelectorAll('.plot')].filter((plot) => !plot.querySelector(
          '.scatterlayer path, .heatmaplayer image, .sankey-link, .points path')
        ).map((plot) => plot.getAttribute('aria-label'))"""
    )
    assert empty == []
    assert page.locator(".js-plotly-plot").count() == page.locator(".plot").count() >= 20
    assert page.locator(".note").count() == 0  # nothing is missing in this run


def test_a_phone_does_not_scroll_sideways(file: Path, compared: Path, visit, synthetic) -> None:
    for address, scheme in ((file, "dark"), (compared, "light")):
        page = visit(address.as_uri(), width=390, scheme=scheme)
        assert page.evaluate("document.documentElement.dataset.theme") == scheme
        if address == file:
            synthetic.draw_all(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        wide = "Math.max(...[...document.querySelectorAll('.main-svg')].map((s) => s.clientWidth))"
        assert page.evaluate(wide) < 390


def test_axis_and_smoothing_are_the_readers_choice(page, run: Path) -> None:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    page.locator("[data-block='curve-reward'] .main-svg").first.wait_for()
    assert traces(page, "curve-reward")[0]["x"] == [line["step"] + 1 for line in lines]
    page.click("#axis button[data-value=tokens]")
    until(page, "curve-reward", "plot.data[0].x[0] > 100")
    tokens = [line["generated_tokens_total"] for line in lines]
    assert traces(page, "curve-reward")[0]["x"] == pytest.approx(tokens, rel=1e-6)
    page.click("#axis button[data-value=time]")
    until(page, "curve-reward", "plot.data[0].x[39] < 20")
    minutes = sum(sum(line["seconds"].values()) for line in lines) / 60
    assert traces(page, "curve-reward")[0]["x"][-1] == pytest.approx(minutes, rel=1e-4)
    raw, smooth = traces(page, "curve-reward")
    assert smooth["y"][20] == pytest.approx(sum(raw["y"][18:23]) / 5)
    page.uncheck("#smooth")
    until(page, "curve-reward", "plot.data.length === 1")
    label = "document.querySelector(\"[data-block='curve-reward'] .xtitle\").textContent"
    assert page.evaluate(label) == "minutes of training"


def test_the_theme_recolours_page_and_plots(file: Path, visit) -> None:
    page = visit(file.as_uri(), scheme="dark")
    before = traces(page, "accuracy")[-1]["line"]["color"]
    page.click("#theme")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    until(page, "accuracy", f"plot.data.at(-1).line.color !== '{before}'")
    back = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(back) == "rgb(246, 247, 249)"
    page.reload()  # and it is remembered
    page.wait_for_selector("#theme")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"


def test_moves_follow_the_chosen_steps(page) -> None:
    block = page.locator("[data-block=moves]")
    block.scroll_into_view_if_needed()
    block.locator(".sankey-link").first.wait_for(state="attached")
    cells = (
        "[...document.querySelectorAll('[data-block=moves] td')].map((c) => Number(c.textContent))"
    )
    whole = page.evaluate(cells)
    assert sum(whole) == 400
    block.locator("select").nth(1).select_option(index=1)
    part = page.evaluate(cells)
    assert sum(part) == 400
    assert part != whole
    assert part[0] + part[4] + part[8] > whole[0] + whole[4] + whole[8]  # fewer have moved by then


def test_rollouts_are_filtered_and_searched(page, run: Path) -> None:
    lines = [json.loads(line) for line in (run / "samples.jsonl").read_text().splitlines()]
    block = page.locator("[data-block=samples]")

    def matches() -> str:
        return block.locator("[aria-live]").inner_text()

    assert matches() == f"{len(lines)} of {len(lines)} match"
    block.locator("[data-filter=tier]").select_option("hard")
    hard = [line for line in lines if line["tier"] == "hard"]
    assert matches() == f"{len(hard)} of {len(lines)} match"
    block.locator("[data-filter=outcome]").select_option("right")
    right = [line for line in hard if line["reward"] == 1]
    assert matches() == f"{len(right)} of {len(lines)} match"
    block.locator("[data-filter=outcome]").select_option("all")
    block.locator("[data-filter=kind]").select_option("hinted")
    hinted = [line for line in hard if line["conditioning"] == "hinted"]
    assert matches() == f"{len(hinted)} of {len(lines)} match"
    for name in ("tier", "kind"):
        block.locator(f"[data-filter={name}]").select_option("all")
    for length in ("short", "long"):
        block.locator("[data-filter=length]").select_option(length)
        assert 0 < int(matches().split()[0]) < len(lines)
    block.locator("[data-filter=length]").select_option("all")
    block.locator("[data-filter=kind]").select_option("hinted")
    wanted = hinted[0]["response"][-9:].upper()
    block.locator("input[type=search]").fill(wanted)
    page.wait_for_function(
        "(n) => !document.querySelector('[aria-live]').textContent.startsWith(n)",
        arg=f"{len(hinted)} of",
    )
    found = [line for line in hinted if wanted.lower() in line["response"].lower()]
    assert matches() == f"{len(found)} of {len(lines)} match"
    sample = block.locator(".sample").first
    sample.locator("summary").click()
    sample.locator("pre").first.wait_for()  # a browser tells of an opened element a moment later
    shown = sample.locator("pre").all_inner_texts()
    assert any(wanted.lower() in text.lower() for text in shown)
    assert sample.locator("h4").all_inner_texts()[1] == "Hint"
    assert shown[1] == "Look at both sides."


def test_hostile_text_stays_text(hostile: Path, tmp_path: Path, visit) -> None:
    out = tmp_path / "report.html"
    write_report([str(hostile)], out)
    source = out.read_text(encoding="utf-8")
    assert "<img src=x" not in source
    assert "<b>bold" not in source
    assert source.count("</script>") == 3
    page = visit(out.as_uri())
    block = page.locator("[data-block=samples]")
    for summary in block.locator(".sample summary").all()[: len(HOSTILE)]:
        summary.click()
    page.wait_for_function(
        "count => [...document.querySelectorAll('[data-block=samples] pre')]"
        ".filter(one => one.innerText).length >= count",
        arg=3 * len(HOSTILE),
    )
    shown = [text for text in block.locator("pre").all_inner_texts() if text]
    for text in (HOSTILE[0], HOSTILE[1], HOSTILE[3]):
        assert sum(text in part for part in shown) == 3  # prompt, hint and response, to the letter
    mangled = next(part for part in shown if "red" in part)
    for sign in ("␛[31mred␛[0m", "␀␇", "⟨U+2028⟩", "⟨U+D800⟩", "⟨U+202E⟩gnp.exe", "⟨U+009B⟩"):
        assert sign in mangled
    assert page.evaluate("window.hacked") is None
    inside = "img, script, b, u, br, i:not([data-colour])"
    assert page.locator("#rollouts").locator(inside).count() == 0
    names = [one["name"] for one in traces(page, "accuracy") if "name" in one]
    assert names == ["&lt;img src=x onerror=alert(1)&gt;"]  # plotly would read it as markup
    assert page.locator("h1").inner_text().endswith(hostile.name)


def test_injected_markup_would_not_run_either(file: Path, tab) -> None:
    """The policy stops what escaping let through, and any request. (Its errors are expected.)"""
    page = tab(False).open(file)
    page.wait_for_selector(".js-plotly-plot")
    failed: dict[str, str] = {}
    page.on("requestfailed", lambda request: failed.update({request.url: request.failure}))
    answered: list[str] = []
    page.on("response", lambda response: answered.append(response.url))
    page.evaluate(
        """() => {
          const script = document.createElement('script');
          script.textContent = 'window.hacked = 1';
          document.body.append(script);
          const markup = '<img src="report.html" onerror="window.hacked = 2">';
          document.body.insertAdjacentHTML('beforeend', markup);
          return fetch('report.html').catch(() => null);
        }"""
    )
    assert page.evaluate("window.hacked") is None
    assert set(failed.values()) <= {"csp"}
    assert answered == []


def test_several_runs_are_compared_and_switched(compared: Path, visit, synthetic) -> None:
    page = visit(compared.as_uri())
    synthetic.draw_all(page)
    assert page.locator(".plot").count() == page.locator(".js-plotly-plot").count()
    curves = traces(page, "comparison-curves")
    assert [one["name"] for one in curves if "name" in one] == ["grpo (2 seeds)", "dare (2 seeds)"]
    assert sum("fill" in one for one in curves) == 2  # the intervals over seeds
    page.locator("section#curves .runs button").first.click()
    page.locator("[data-block='curve-reward']").scroll_into_view_if_needed()
    until(page, "curve-reward", "plot.data[0].visible === false")
    before = page.locator("section#landscape p.soft").inner_text()
    page.select_option("#run", "3")
    assert page.locator("section#landscape p.soft").inner_text() != before
    page.locator("[data-block=heatmap]").scroll_into_view_if_needed()
    page.locator("[data-block=heatmap] .heatmaplayer image").wait_for(state="attached")
    assert len(traces(page, "heatmap")[0]["x"]) == 40


def test_a_run_that_has_just_begun_says_what_is_missing(tmp_path: Path, tab) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "config.yaml").write_text("training: {preset: dare, seed: 1}\n")
    write_report([str(tmp_path / "new")], tmp_path / "report.html")
    errors: list[str] = []
    tab(False).page.on("pageerror", lambda error: errors.append(str(error)))
    page = tab(False).open(tmp_path / "report.html")
    page.wait_for_selector(".note")
    assert page.locator(".note").count() >= 7
    assert page.locator("section").count() == len(SECTIONS)
    assert errors == []


def test_a_short_run_without_tiers_has_whole_steps_and_no_tiers(
    tmp_path: Path, synthetic: Any, visit: Any
) -> None:
    synthetic.synthesise(tmp_path / "run", steps=4, prompts=40, drawn=8, words=5)
    config = tmp_path / "run" / "config.yaml"
    config.write_text(config.read_text("utf-8").replace("tiers: true", "tiers: false"), "utf-8")
    metrics = tmp_path / "run" / "metrics.jsonl"
    records = [json.loads(line) for line in metrics.read_text("utf-8").splitlines()]
    held = [json.dumps({**one, "reward_medium": 0.5, "rollouts_hinted": 0}) for one in records]
    metrics.write_text("\n".join(held) + "\n", "utf-8")
    write_report([str(tmp_path / "run")], tmp_path / "report.html")
    page = visit((tmp_path / "report.html").as_uri(), width=1280)
    synthetic.draw_all(page)
    ticks = "[data-block='{}'] .xtick text"
    assert page.locator(ticks.format("curve-reward")).all_text_contents() == ["1", "2", "3", "4"]
    assert page.locator(ticks.format("heatmap")).all_text_contents() == ["1", "2", "3", "4"]
    assert page.locator("[data-block='curve-reward_medium']").count() == 0
    assert page.locator("[data-block='curve-rollouts_hinted']").count() == 0
    heads = page.locator("[data-block='level-table'] th").all_inner_texts()
    assert heads[:4] == ["level", "prompts", "seen", "difficulty"]
    assert "medium" not in heads
    assert not page.locator("[data-filter=tier]").is_visible()
    badges = page.locator("section#rollouts .sample .badge").all_inner_texts()
    assert badges
    assert not {"easy", "medium", "hard"} & set(badges)


def test_flat_curves_and_shares_have_possible_axes(page: Any) -> None:
    """Plotly would show a flat 0 between -1 and 1, and shares beyond 0 to 100 %."""
    source = resources.files("dare").joinpath("report", "assets", "plots.js").read_text("utf-8")
    found = re.search(r"^function reach\(.*?^}$", source, re.M | re.S)
    assert found
    call = "return reach([{type: 'scatter', y: values}], share);"
    ends = f"([values, share]) => {{ {found[0]} {call} }}"
    assert page.evaluate(ends, [[0, 0, 0], True]) == pytest.approx([-0.0006, 0.02])  # off the frame
    assert page.evaluate(ends, [[1, 1], True])[1] <= 1.01
    low, high = page.evaluate(ends, [[0.4, 0.6], True])
    assert 0.3 < low < 0.4 < 0.6 < high < 0.7
    assert page.evaluate(ends, [[0, 0], False]) == pytest.approx([-0.03, 1])
    assert page.evaluate(ends, [[0.01, 0.9], True])[0] == 0
    assert page.evaluate(ends, [[-2, -2], False]) == pytest.approx([-2.2, -1.8])
    assert page.evaluate(ends, [[1, 2], False]) is None  # plotly's own choice is good


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


THEMES = (resources.files("dare.report") / "assets" / "theme.js").read_text("utf-8")
STANDS_OUT = [
    (back, colour)
    for name, back in (("light", "#ffffff"), ("dark", "#181e27"))
    for colours in re.findall(rf"{name}: \{{.*?runs: \[([^\]]*)\]", THEMES, re.S)
    for colour in re.findall(r"#\w{6}", colours)
]


@pytest.mark.parametrize(("back", "colour"), STANDS_OUT)
def test_colours_of_figures_stand_out_on_light_and_dark_pages(back: str, colour: str) -> None:
    assert len(STANDS_OUT) == 2 * RUN_COLOURS
    assert f'card: "{back}"' in THEMES
    bright, dark = sorted((luminance(colour), luminance(back)), reverse=True)
    assert (bright + 0.05) / (dark + 0.05) > 3


@pytest.mark.parametrize("width", [390, 1280])
def test_figures_side_by_side_stay_in_their_panels(width: int, visit, tmp_path: Path) -> None:
    dots = {"type": "scatter", "x": [1, 2], "y": [1, 2], "colour": "run:0", "name": "a"}
    plots = [plot(f"p{n}", f"panel {n}", "", [dots], x="x", legend=True) for n in range(9)]
    frame = {"title": "t", "written": 0, "runs": [], "unit": "seconds", "axes": {}}
    path = tmp_path / "figures.html"
    text = page_of({**frame, "sections": [section("part", "Part", "", plots)]}, picture=True)
    path.write_text(text, "utf-8")
    page = visit(path.as_uri(), width=width)
    page.wait_for_timeout(300)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    over = "[...document.querySelectorAll('.block')].map((panel) => "
    over += "panel.querySelector('.main-svg').getBoundingClientRect().width - panel.clientWidth)"
    assert len(page.evaluate(over)) == 9  # all are drawn, those far below the window too
    assert max(page.evaluate(over)) <= 1
    widths = "[...document.querySelectorAll('.block')].map((panel) => panel.offsetWidth)"
    *pairs, last = page.evaluate(widths)
    whole = page.evaluate("document.querySelector('.grid').offsetWidth")
    assert last == whole  # the one without a neighbour
    assert set(pairs) == {whole} if width < 600 else max(pairs) < whole / 2
    hidden = "[...document.querySelectorAll('.top, .bar, h2')].map((one) => one.offsetHeight)"
    assert set(page.evaluate(hidden)) == {0}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_paper_has_every_chart_on_white_and_no_wider_than_it_is(
    file: Path, visit, scheme: str
) -> None:
    page = visit(file.as_uri(), scheme=scheme)
    assert page.locator(".js-plotly-plot").count() < page.locator(".plot").count() / 2
    page.evaluate(
        """addEventListener('beforeprint', () => {
          const widths = [...document.querySelectorAll('.main-svg')].map((one) => one.clientWidth);
          const theme = document.documentElement.dataset.theme;
          window.paper = {widest: Math.max(...widths), theme};
        })"""
    )
    assert page.pdf().startswith(b"%PDF")
    unfolded = ".plot:not(.fold .plot)"
    drawn = page.locator(unfolded).and_(page.locator(".js-plotly-plot")).count()
    assert drawn == page.locator(unfolded).count() >= 15
    assert page.evaluate("window.paper.theme") == "light"
    assert 600 < page.evaluate("window.paper.widest") <= 718
    assert page.evaluate("document.documentElement.dataset.theme") == scheme  # as it was
    until(page, "accuracy", "plot.querySelector('.main-svg').clientWidth > 1000")


def test_switches_are_there_where_they_act(page: Any, visit, tmp_path: Path) -> None:
    assert page.locator("#axis").count() == page.locator("#smooth").count() == 1
    fixed = {"type": "scatter", "x": [1, 2], "y": [1, 2], "colour": "run:0", "name": "a"}
    part = section("part", "Part", "", [plot("p", "panel", "", [fixed], x="tokens")])
    frame = {"title": "t", "written": 1_700_000_000, "runs": [], "unit": "seconds", "axes": {}}
    (tmp_path / "fixed.html").write_text(page_of({**frame, "sections": [part]}), "utf-8")
    other = visit((tmp_path / "fixed.html").as_uri())
    assert other.locator("#axis").count() == other.locator("#smooth").count() == 0
    assert other.locator("#written").inner_text() == "Written 2023-11-14 22:13 UTC"
    assert other.locator("nav").count() == 0  # one section has nowhere else to go


def test_plots_that_share_a_row_are_of_one_height(page: Any) -> None:
    rows = """[...document.querySelectorAll('.grid')].flatMap((grid) => {
      const found = new Map();
      for (const panel of grid.querySelectorAll(':scope > .block:has(> .plot)')) {
        const top = panel.offsetTop;
        found.set(top, [...(found.get(top) || []), panel.querySelector('.plot').style.height]);
      }
      return [...found.values()].filter((row) => row.length > 1);
    })"""
    pairs = page.evaluate(rows)
    assert len(pairs) > 5
    assert all(left == right for left, right in pairs)

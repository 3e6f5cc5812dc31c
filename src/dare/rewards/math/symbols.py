# ruff: noqa: RUF001 (look-alikes are what this table is about)
"""Unicode and LaTeX spellings of the same thing, as tables."""

from __future__ import annotations

_SUPER = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ⁿⁱ"
_SUPER_PLAIN = "0123456789+-=()ni"
_SUB = "₀₁₂₃₄₅₆₇₈₉₊₋"
_SUB_PLAIN = "0123456789+-"
SUPERSCRIPTS = dict(zip(_SUPER, _SUPER_PLAIN, strict=True))
SUBSCRIPTS = dict(zip(_SUB, _SUB_PLAIN, strict=True))

_FRACTIONS = {
    "½": (1, 2), "⅓": (1, 3), "⅔": (2, 3), "¼": (1, 4), "¾": (3, 4), "⅕": (1, 5), "⅖": (2, 5),
    "⅗": (3, 5), "⅘": (4, 5), "⅙": (1, 6), "⅚": (5, 6), "⅐": (1, 7), "⅛": (1, 8), "⅜": (3, 8),
    "⅝": (5, 8), "⅞": (7, 8), "⅑": (1, 9), "⅒": (1, 10),
}  # fmt: skip

CHARACTERS: dict[str, str] = {
    **{char: rf"\frac{{{top}}}{{{low}}}" for char, (top, low) in _FRACTIONS.items()},
    **dict.fromkeys("−–—‐‑‒﹣－", "-"),
    **dict.fromkeys("×∗⋅·∙•⨯", "*"),
    **dict.fromkeys("÷⁄∕／", "/"),
    **dict.fromkeys("∶：", ":"),
    **dict.fromkeys("，、", ","),
    **dict.fromkeys("；", ";"),
    **dict.fromkeys("°º˚", r"^\circ "),
    **dict.fromkeys("≤⩽≦", r"\le "),
    **dict.fromkeys("≥⩾≧", r"\ge "),
    **dict.fromkeys("…⋯", r"\ldots "),
    **dict.fromkeys("∅⌀", r"\emptyset "),
    **dict.fromkeys("′’", "'"),
    "≠": r"\ne ", "≈": r"\approx ", "≡": r"\equiv ", "±": r"\pm ", "∓": r"\mp ", "√": r"\sqrt ",
    "∞": r"\infty ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "π": r"\pi ", "τ": r"\tau ",
    "α": r"\alpha ", "β": r"\beta ", "γ": r"\gamma ", "δ": r"\delta ", "ε": r"\epsilon ",
    "θ": r"\theta ", "λ": r"\lambda ", "μ": r"\mu ", "ρ": r"\rho ", "σ": r"\sigma ",
    "φ": r"\phi ", "ϕ": r"\phi ", "ω": r"\omega ", "Δ": r"\Delta ", "Ω": r"\Omega ",
    "ℝ": r"\mathbb{R}", "ℤ": r"\mathbb{Z}", "ℕ": r"\mathbb{N}", "ℚ": r"\mathbb{Q}",
    "ℂ": r"\mathbb{C}", "⟨": r"\langle ", "⟩": r"\rangle ", "〈": r"\langle ", "〉": r"\rangle ",
    "⌊": r"\lfloor ", "⌋": r"\rfloor ", "⌈": r"\lceil ", "⌉": r"\rceil ",
    "€": r"\$", "£": r"\$", "¥": r"\$", "₹": r"\$", "％": r"\%", "∣": "|", "∖": r"\setminus ",
}  # fmt: skip

# LaTeX commands with one canonical spelling; an empty one is dropped.
COMMANDS: dict[str, str] = {
    **dict.fromkeys(("dfrac", "tfrac", "cfrac", "sfrac", "nicefrac"), r"\frac "),
    **dict.fromkeys(("dbinom", "tbinom"), r"\binom "),
    **dict.fromkeys(("cdot", "times", "ast"), "*"),
    **dict.fromkeys(("leq", "leqslant", "le"), r"\le "),
    **dict.fromkeys(("geq", "geqslant", "ge"), r"\ge "),
    **dict.fromkeys(("neq", "ne"), r"\ne "),
    **dict.fromkeys(("dots", "cdots", "ldots", "dotsc"), r"\ldots "),
    **dict.fromkeys(("varnothing", "emptyset"), r"\emptyset "),
    **dict.fromkeys(("vert", "lvert", "rvert", "mid"), "|"),
    **dict.fromkeys(("lor", "vee"), r"\text{ or }"),
    **dict.fromkeys(("degree", "degrees"), r"^\circ "),
    **dict.fromkeys(("quad", "qquad", "enspace", "thinspace"), " "),
    **dict.fromkeys(("displaystyle", "textstyle", "limits", "nolimits", "hfill"), ""),
    **dict.fromkeys(("left", "right", "bigl", "bigr", "Bigl", "Bigr", "big", "Big"), ""),
    **dict.fromkeys(("biggl", "biggr", "Biggl", "Biggr", "bigg", "Bigg", "middle"), ""),
    "div": "/", "lt": "<", "gt": ">", "lbrace": r"\{", "rbrace": r"\}", "lbrack": "[",
    "rbrack": "]", "colon": ":", "varepsilon": r"\epsilon ", "varphi": r"\phi ",
    "prime": "'", "dollar": r"\$", "textdollar": r"\$", "pounds": r"\$", "euro": r"\$",
    "mathring": "", "imath": "i", "ln": r"\ln ", "land": r"\text{ and }", "infin": r"\infty ",
    "textdegree": r"^\circ ", "bar": r"\overline ",
}  # fmt: skip

# Boxes of words, written as \text{...} from here on.
TEXT_COMMANDS = (
    "text", "mbox", "textbf", "textrm", "textnormal", "textit", "textsf", "texttt", "mathrm",
    "operatorname", "mathbf", "boldsymbol", "mathit", "mathsf", "bm", "emph", "underline",
    "hbox", "rm", "bf", "textup",
)  # fmt: skip

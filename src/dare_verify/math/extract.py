r"""The text of an answer: which part of a completion it is, and one spelling for all who mean it.

The last `\boxed{...}` counts, or what follows `####`. `clean` then settles Unicode, spacing, the
sizes of brackets and dollar signs.
"""

from __future__ import annotations

import math
import re
import unicodedata
from functools import lru_cache
from numbers import Number

# ruff: noqa: RUF001 (look-alikes are what a table below is about)

_BOX = re.compile(r"\\(?:boxed|fbox)(?![a-zA-Z])")
_CUT_OFF = re.compile(r"\\(?:bo?x?e?|fb?o?)\Z")  # the text ends inside the command of another box
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_MARK = re.compile(r"####+")


def boxed_answer(text: str) -> str | None:
    r"""The content of the last box; None where it is absent, empty or never closed.

    Braces are counted as TeX does, where `\{` neither opens nor closes anything, and the time is in
    proportion to the box alone.
    """
    if _CUT_OFF.search(text, max(0, len(text) - 8)):
        return None
    boxes = list(_BOX.finditer(text, max(0, text.rfind("\\boxed"), text.rfind("\\fbox"))))
    if not boxes:
        return None
    start = boxes[-1].end()
    while start < len(text) and text[start].isspace():
        start += 1
    if not text.startswith("{", start):
        return None
    depth = 0
    for brace in _BRACE.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(brace.group(), 0)
        if depth == 0:
            return text[start + 1 : brace.start()].strip() or None
    return None


def marked_answer(text: str) -> str | None:
    """The rest of the line after the last `####`; None where there is none."""
    marks = list(_MARK.finditer(text))
    if not marks:
        return None
    line = text[marks[-1].end() :].strip().partition("\n")[0]
    return line.strip() or None


def final_answer(completion: str) -> str | None:
    r"""The answer a completion commits to: its last `\boxed{}`; without any, the last `####`."""
    return boxed_answer(completion) if _BOX.search(completion) else marked_answer(completion)


def gold_answer(gold: object) -> str | None:
    r"""The reference as text; None where there is none to compare with.

    A worked solution is taken too: its last `\boxed{}`, or what follows its `####`.
    """
    if isinstance(gold, bool) or gold is None:
        return None
    if isinstance(gold, float) and not math.isfinite(gold):
        return None
    if not isinstance(gold, str | Number):
        return None
    text = _digits(gold) if isinstance(gold, int) else str(gold).strip()
    if _BOX.search(text) or _MARK.search(text):
        return final_answer(text)
    return text or None


def _digits(number: int) -> str:
    """Decimal text of an integer of any length: `str` refuses beyond 4300 digits."""
    if abs(number) < 10**4000:
        return str(number)
    chunks, rest = [], abs(number)
    while rest:
        rest, low = divmod(rest, 10**4000)
        chunks.append(str(low).zfill(4000))
    return ("-" if number < 0 else "") + "".join(reversed(chunks)).lstrip("0")


_RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ⁿⁱ"
_SUPER_PLAIN = "0123456789+-=()ni"
_LOWERED = "₀₁₂₃₄₅₆₇₈₉₊₋"
_SUB_PLAIN = "0123456789+-"
SUPERSCRIPTS = dict(zip(_RAISED, _SUPER_PLAIN, strict=True))
SUBSCRIPTS = dict(zip(_LOWERED, _SUB_PLAIN, strict=True))

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


_INVISIBLE = re.compile("[\u200b-\u200f\u2060-\u2064\ufeff\u00ad\ufe0e\ufe0f]")
_CONTROL = re.compile("[\x00-\x1f\x7f\u2028\u2029]+")
_SUPER = re.compile(f"[{''.join(map(re.escape, SUPERSCRIPTS))}]+")
_SUB = re.compile(f"[{''.join(SUBSCRIPTS)}]+")
_COMMAND = re.compile(r"\\([a-zA-Z]+)\s?")
_TEXT = re.compile(r"\\(?:" + "|".join(TEXT_COMMANDS) + r")(?![a-zA-Z])\s*\{")
_LEAD = re.compile(
    r"^\s?(?:\\text\{[^{}\d]*(?:\b(?:is|are|equals)|[:=])\s*\}|(?i:answer) ?:)\s?:?(?=.)"
)
_PRICE = re.compile(r"\\\$\s*((?:\d|\.\d|,\d|,?\\!\s*|\{,\})+)(?=\s*(?:[,;.)}\]]|\Z))")
_ANSWER = re.compile(r"^(?:the )?(?:final )?answer(?: is)?\s*:?\s*(?=\S)", re.I)
_DRESS = re.compile(r"\\(?:text)?color\s*\{[^{}]*\}|(?<![A-Za-z])USD(?![A-Za-z])")
_CHOOSE = re.compile(r"\{([^{}]*)\\choose(?![a-zA-Z])([^{}]*)\}")
_BARE_FONT = re.compile(r"(\\(?:mathbf|mathrm|mathit|mathsf|bm))\s+([A-Za-z0-9])(?![A-Za-z0-9])")
_ORDINAL = re.compile(
    r"\^\s*\{?\s*\\text\s*\{\s*(?:st|nd|rd|th)\s*\}\s*\}?|\^\s*\{\s*(?:st|nd|rd|th)\s*\}"
    r"|(?<=\d)(?:st|nd|rd|th)(?![A-Za-z])"
)
_BASED = re.compile(r"\\text\{\s*([0-9A-Z]+)\s*\}(?=\s?_\s?[\d{])")  # digits of base 16
_CLOCK = re.compile(r"(?<=:\d\d) ?([apAP])\.? ?[mM](?![A-Za-z])\.?")
_QUOTIENT = re.compile(r"\\text\{([^{}]*)\} ?/ ?\\text\{\s*([^{}]*)\}")
_EDGE = " \t.,;:"
_FUNCTION = re.compile("(?:arc)?(?:sin|cos|tan)|cot|sec|csc|sinh|cosh|tanh|ln|log|lg|exp|gcd|lcm")


@lru_cache(maxsize=4096)
def clean(text: str) -> str:
    """The canonical spelling of an answer. Idempotent; never raises."""
    text = _INVISIBLE.sub("", text)
    if not text.isascii():
        text = _from_unicode(text)
    text = _CONTROL.sub(" ", text)
    text = text.replace("\\\\", "\x01")  # a line break of a matrix, out of the way
    text = _DRESS.sub("", text.rstrip("\\ "))
    text = _CHOOSE.sub(r"\\binom{\1}{\2}", text)
    text = _BARE_FONT.sub(r"\1{\2}", text)
    text = re.sub(r"(?:(?<=,)\s*)?\\!\s*", "", text)
    text = _PRICE.sub(r"\1\\text{ dollars}", text)
    text = re.sub(r"\\[()\[\]]|\$\$", " ", text)
    text = re.sub(r"(?<!\\)\$", " ", text).replace("\\$", " ").replace("\\%", "%")
    text = re.sub(r"\\[,;: >]|~|\\(?=\s)", " ", text)
    text = re.sub(r"\\phantom\s*-?", " ", text)
    text = _ORDINAL.sub(" ", text)
    text = _texts(text)
    text = _COMMAND.sub(_command, text)
    text = re.sub(r"\^\s*\{\s*(?:\\circ|o)\s*\}|\^\s*\\circ", r"^\\circ ", text)
    text = re.sub(r"\^\s?\{\s?('+)\s?\}|\^\s?('+)", r"\1\2", text)
    text = text.replace("\x01", "\\\\").replace("\\%", "%")
    text = re.sub(r"\.\.\.+", r"\\ldots ", text)
    text = re.sub(r"(?<=\d)\s*\{,\}\s*(?=\d{3}(?!\d))", ",", text)
    text = re.sub(r"(?<=\d)\{,\}(?=\d)", ".", text)  # the decimal comma of other countries
    text = re.sub(r"\*\*(?=\S)", "^", text) if re.search(r"\w\s?\*\*\s?[\w(-]", text) else text
    text = re.sub(r"\s+", " ", text)
    text = _CLOCK.sub(lambda m: rf"\text{{ {m.group(1).lower()}.m.}}", text)
    text = _QUOTIENT.sub(r"\\text{\1/\2}", text)
    text = _BASED.sub(r"\1", text)
    text = _ANSWER.sub("", text.lstrip())
    text = _LEAD.sub("", text.replace(r"\checkmark ", " "))
    text = re.sub(r"^\s?(?:\\approx|=)\s?|\bnp\.(?=[a-z])", "", text)
    return _unwrap(_trim(text))


def squeeze(text: str) -> str:
    """Without the blanks that carry no meaning: those between two digits or letters stay."""
    return re.sub(r"(?<![0-9A-Za-z]) | (?![0-9A-Za-z])", "", text)


def _trim(text: str) -> str:
    text = text.strip(" \t,;:")
    while text.endswith(".") or text.startswith(("**", ". ")) or text.endswith("**"):
        text = text.removesuffix("**").removeprefix("**").removeprefix(". ").rstrip(_EDGE)
        text = text.removesuffix(".").strip(_EDGE.replace(".", ""))
    return text


def _from_unicode(text: str) -> str:
    text = _SUPER.sub(lambda m: "^{" + "".join(SUPERSCRIPTS[c] for c in m.group()) + "}", text)
    text = _SUB.sub(lambda m: "_{" + "".join(SUBSCRIPTS[c] for c in m.group()) + "}", text)
    text = "".join(CHARACTERS.get(char, char) for char in text)
    text = unicodedata.normalize("NFKC", text)
    return "".join(CHARACTERS.get(char, char) for char in text)


def _command(match: re.Match[str]) -> str:
    name = match.group(1)
    if name in COMMANDS:
        return COMMANDS[name]
    if name == "text":
        return r"\text"
    return match.group().rstrip() + " "


def _texts(text: str) -> str:
    r"""Every box of words as `\text{...}`; names of functions and single letters lose the box."""
    parts, place = [], 0
    for match in _TEXT.finditer(text):
        if match.start() < place:
            continue
        end = text.find("}", match.end())
        if end < 0:
            break
        words = text[match.end() : end]
        if "{" in words or "\\" in words:
            parts.append(text[place : match.start()] + "{")
            place = match.end()
            continue
        parts.append(text[place : match.start()])
        bare = _ANSWER.sub("", words.strip())
        if _FUNCTION.fullmatch(bare):
            parts.append(f"\\{bare} ")
        elif bare in ("i", "e") or not re.search(r"[A-Za-z]", bare):
            parts.append(f" {bare} ")
        elif counted := re.fullmatch(r"([-+]?[\d.,/:]*\d)\s*(\D*)", bare):
            parts.append(f" {counted.group(1)} \\text{{ {counted.group(2)}}}")
        else:
            parts.append(f"\\text{{{words if bare == words.strip() else bare}}}")
        place = end + 1
    return "".join([*parts, text[place:]])


def _unwrap(text: str) -> str:
    """Without a pair of braces around everything."""
    while text.startswith("{") and text.endswith("}"):
        depth = 0
        for place, char in enumerate(text):
            if char in "{}" and text[place - 1 : place] != "\\":
                depth += 1 if char == "{" else -1
                if depth == 0 and place < len(text) - 1:
                    return text
        inner = text[1:-1].strip()
        if depth != 0:
            return text
        text = _trim(inner)
    return text

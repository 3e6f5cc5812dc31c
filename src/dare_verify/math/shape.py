"""The structure of an answer: lists, tuples, sets, intervals, matrices, relations; words and units.

Splitting happens at the outermost level only; what cannot be split is a leaf.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache

from dare_verify.math.extract import clean, squeeze

EMPTY = "∅"
_ALIASES = {
    EMPTY: ("\\emptyset", "\\{\\}", "emptyset", "empty set", "the empty set", "no solution",
            "no solutions", "no real solution", "no real solutions"),
    "dne": ("does not exist", "doesnt exist", "dne", "limit does not exist"),
    "infinitely many": ("infinite", "infinitely many"),
}  # fmt: skip
_NUMBERS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
    "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
    "twenty",
)  # fmt: skip
_SHORT = frozenset(["no", "yes", "odd", "up", "down", "one", "two", "six", "ten"])
_FUNCTIONS = re.compile(
    "(?:arc)?(?:sin|cos|tan)|cot|sec|csc|sinh|cosh|tanh|log|exp|gcd|lcm|max|min"
)
_VARIABLES = re.compile("[a-d]+|[k-n]+|[p-t]+|[u-z]+", re.I)
# Marks that separate words, and stops, unless they belong to a number: `about -1.5` keeps both.
_MARKS = re.compile(r"-(?!\d)|(?<=\w)-|,(?!\d)|/(?!\d)")
_STOPS = re.compile(r"\.(?!\d)|[()\[\]:;!?\"`*$]")
_ALIAS = {name: key for key, names in _ALIASES.items() for name in names if len(name) > 1}


def words_of(text: str, *, meant: bool = False) -> str | None:
    r"""The words of an answer made of words alone, lower case; None where it is not.

    `\text{(A)}`, `(A)` and `A` are the letter A, whose case is kept. Without `\text{}`, short
    words and those next to digits count only where words are `meant`.
    """
    if text.strip() in ("\\emptyset", "\\{\\}", "\\{ \\}"):
        return EMPTY
    boxed = "\\text" in text or meant
    plain = re.sub(r"\\text\{([^{}]*)\}", r" \1 ", text)
    if "\\" in plain or "_" in plain or "^" in plain:
        return None
    if re.match(r"\s*[-+.\d]", plain):
        return None
    letter = re.fullmatch(r"\s*[\[(]?\s*([A-Z])\s*[\])]?\s*[.:]?\s*", plain)
    if letter:
        return letter.group(1)
    runs = re.findall(r"[A-Za-z]+", plain)
    if not runs or (meant and max(map(len, runs)) < 2):
        return None
    if not boxed and max(map(len, runs)) < 4 and plain.strip().lower() not in _SHORT:
        return None
    if not boxed and re.search(r"[-+*/=<>()\d]", plain):
        return None
    lowered = _MARKS.sub(" ", plain.lower().replace("'", ""))
    lowered = " ".join(_STOPS.sub("", lowered).split()).removeprefix("the ")
    return _ALIAS.get(lowered, lowered)


def is_word(text: str) -> bool:
    """Is a bare run of letters a word like `cat`, and not a product like `xyz`, `mgh` or `abc`?

    Words have vowels and consonants and no capitals inside; neighbours in the alphabet, as in
    `abc`, are variables.
    """
    word = text.lower()
    return (
        bool(re.fullmatch("[A-Za-z][a-z]{2,}", text))
        and bool(re.search("[aeiouy]", word))
        and not re.fullmatch("[aeiouy]+", word)
        and not _VARIABLES.fullmatch(word)
        and not _FUNCTIONS.fullmatch(word)
    )


def choice_of(text: str) -> str | None:
    r"""The letter of a multiple-choice answer like `\textbf{(B)}\ 12`; None where there is none."""
    found = re.match(
        r"\s?(?:\\text\{)?\s?(?:(?i:option|choice|answer)\s+\(?([A-J])\)?\s?\}?$|\(([A-J])\)\s?\}?"
        r"(?=[\s\d\\:.-]|$)|([A-J])[.):]\s?\}?\s?(?=[\d\\$]))",
        text,
    )
    return next((letter for letter in found.groups() if letter), None) if found else None


def number_of(word: str) -> str | None:
    """`five` as 5, `infinity` as a sign; None for other words."""
    if word == "infinity":
        return r"\infty"
    return str(_NUMBERS.index(word)) if word in _NUMBERS else None


# Spellings of one unit; two different units never agree.
_UNITS = {
    "mm": "millimeter millimeters millimetre millimetres",
    "cm": "centimeter centimeters centimetre centimetres",
    "m": "meter meters metre metres",
    "km": "kilometer kilometers kilometre kilometres",
    "in": "inch inches",
    "ft": "foot feet",
    "yd": "yard yards yds",
    "mi": "mile miles",
    "g": "gram grams",
    "kg": "kilogram kilograms kgs",
    "mg": "milligram milligrams",
    "lb": "pound pounds lbs",
    "oz": "ounce ounces",
    "ton": "tons tonne tonnes",
    "l": "liter liters litre litres",
    "ml": "milliliter milliliters",
    "gal": "gallon gallons",
    "s": "sec secs second seconds",
    "min": "minute minutes mins",
    "h": "hr hrs hour hours",
    "day": "days",
    "week": "weeks",
    "month": "months",
    "year": "years yr yrs",
    "cent": "cents",
    "dollar": "dollars usd bucks",
    "am": "a.m. a.m",
    "pm": "p.m. p.m",
    "miperh": "mph",
    "kmperh": "kph kmph kmh",
    "rad": "radian radians",
    "euro": "euros",
    "°": "degree degrees deg",
    "%": "percent",
}
UNITS = {name: short for short, names in _UNITS.items() for name in (short, *names.split())}
_SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_SINGLE = frozenset("mglhs")  # alone, outside \text{}, such a letter is a variable

_POWER = r"(?:\s?\^\s?(?:\{\s?-?\d\s?\}|-?\d))?"
_TEXT_UNIT = re.compile(rf"\s?\\text\{{([^{{}}]*)\}}({_POWER})\.?$")
_BARE_UNIT = re.compile(rf"(?<=[\d}})%])\s?(/?[A-Za-z][A-Za-z. /]*[A-Za-z.])({_POWER})$")
_CONNECTIVE = re.compile(
    "or|and|to|not|no|mod|if|than|less|more|over|through|between|half|halves|quarters?|thirds?|"
    "fourths?|fifths?|sixths?|sevenths?|eighths?|ninths?|tenths?|hundredths?|thousandths?|"
    "millionths?|squared|cubed|factorial|choose|times|plus|minus|divided|dozens?|scores?|pi|root|"
    "remainder|approximately|about|except|fewer|least|most|other|below|wrong|incorrect|never"
)
_MODULUS = re.compile(
    r"\s?\(?\s?\\(?:pmod|bmod|mod)\s?\{?\s?(\d+)\s?\}?\s?\)?$|\s\(?mod\s(\d+)\)?$"
)
_CELSIUS = re.compile(r"\s?\^\\circ ?(?:\\text\{)? ?([CF])\}?$")
_NUMBER_END = re.compile(r"[\d})\]A-Za-z%']$|\\circ ?$|\\pi ?$")
_FILLER = re.compile(
    "square|cubic|sq|per|units|unit|degrees|degree|percent|hundred|thousand|million|"
    "billion|trillion|of"
)


def split_unit(text: str) -> tuple[str, str, Fraction]:
    """The expression, its unit ('' where none or of no known kind), and a scale like a million."""
    unit, scale = "", Fraction(1)
    if found := _MODULUS.search(text):
        return text[: found.start()], f"mod {found.group(1) or found.group(2)}", scale
    if found := _CELSIUS.search(text):
        return text[: found.start()] + r"^\circ", f"°{found.group(1)}", scale
    for _ in range(4):
        found = _TEXT_UNIT.search(text)
        bare = None if found else _BARE_UNIT.search(text)
        found = found or bare
        if not found or not text[: found.start()].strip():
            break
        words = found.group(1).strip().lower().replace("/", " per ")
        before = text[: found.start()].rstrip()
        if not _NUMBER_END.search(before):
            break
        parts = words.split()
        if any(_CONNECTIVE.fullmatch(part) or any(c.isdigit() for c in part) for part in parts):
            break
        if bare and not all(map(_plain_word, parts)):
            break
        if bare and parts[-1] in _SINGLE and (len(parts) == 1 or parts[0] == "per"):
            break
        if parts == ["percent"]:
            return before + "%", "%", scale
        if parts and parts[0] in _SCALES:
            scale *= Fraction(10) ** _SCALES[parts[0]]
            parts = parts[1:]
        unit = _unit(parts, found.group(2)) + unit
        text = before
    if not unit:
        unit = "%" if text.endswith("%") else "°" if text.rstrip().endswith("^\\circ") else ""
    return text, unit, scale


def clash(first: str, second: str) -> bool:
    """Are both units known and different? A degree may leave open of what."""
    if not first or not second or first == second:
        return False
    return not (first[0] == second[0] == "°" and "°" in (first, second))


def _plain_word(word: str) -> bool:
    """Outside of a box for text, short runs of letters are products of variables."""
    return (
        word.strip(".") in UNITS
        or bool(_FILLER.fullmatch(word))
        or (len(word) > 3 and word.isalpha())
    )


def _unit(parts: list[str], power: str) -> str:
    """A canonical unit; words of no known kind (dogs, ways, units) are no unit at all."""
    exponent = {"square": "2", "sq": "2", "cubic": "3"}.get(parts[0] if parts else "", "")
    exponent = exponent or re.sub(r"[\s^{}]", "", power)
    names = [name for name in parts if name not in ("square", "sq", "cubic")]
    known = [UNITS.get(name) or UNITS.get(name.strip(".,")) for name in names]
    known = [
        "per" if name in ("per", "/") else unit for name, unit in zip(names, known, strict=True)
    ]
    if not known or None in known or known == ["per"]:
        return ""
    return "".join(str(unit) for unit in known) + exponent


_OPEN = re.compile(r"\\\{|\\langle|\\lfloor|\\lceil|\\begin\s?\{\w+\*?\}|[(\[{]")
_CLOSE = re.compile(r"\\\}|\\rangle|\\rfloor|\\rceil|\\end\s?\{\w+\*?\}|[)\]}]")
_AND = re.compile(r"\\text\{\s*,?\s*(?:and|or)\s*:?\s*\}|(?<![A-Za-z])(?:and|or)(?![A-Za-z])|;|\\&")
_OR = re.compile(r"\\text\{\s*OR\s*\}|(?<![A-Za-z])OR(?![A-Za-z])")
_RELATION = re.compile(
    r"\\le(?![a-zA-Z])|\\ge(?![a-zA-Z])|\\ne(?![a-zA-Z])|\\approx|\\equiv|<=|>=|!=|:=|[=<>]"
)
_IN = re.compile(r"\\in(?![a-zA-Z])")
_BAR = re.compile(r"\||:")
_CUP = re.compile(r"\\cup(?![a-zA-Z])|(?<=[\])}])\s?U\s?(?=[\[({\\])")
_COMMA = re.compile(",")
_COLON = re.compile(":")
_SIGN = re.compile(r"\\pm(?![a-zA-Z])|\\mp(?![a-zA-Z])")
_THOUSANDS = re.compile(r"[-+]? ?\d{1,3}(?:,\d{3})+(?:\.\d+)?(?=\D|$)")
_MATRIX = re.compile(
    r"\\begin\s?\{([pbBv]?)(?:small)?(?:matrix|array)\}(?:\s?\{[lcr| ]*\})?(.*)"
    r"\\end\s?\{[pbBv]?(?:small)?(?:matrix|array)\}$",
    re.DOTALL,
)
_SCALED = re.compile(  # a number in front multiplies every cell
    r"(-|-?(?:[\d.]+|\\frac ?(?:\{[^{}]*\}|\d) ?(?:\{[^{}]*\}|\d))) ?\*? ?"
    r"\\begin\s?\{([pbB])matrix\}(.*)\\end\s?\{[pbB]matrix\}",
    re.DOTALL,
)
_OUTWARD = re.compile(r"([\[\]])([^\[\]()]*,[^\[\]()]*)([\[\]])")
_TUPLES = re.compile(r"(?:\([^()]*,[^()]*\)\s?){2,}")
_CONDITION = re.compile(  # `..., k \\in \\mathbb{Z}` says what k is, and is no second answer
    r"(?:\\text\{ ?(?:where|for|with)? ?(?:any|all|some)? ?\} ?)?"
    r"[a-zA-Z] ?\\in ?\\mathbb ?\{[A-Z]\}"
    r"|\\text\{ ?(?:where|for) [^{}]*\}"
)
_ELEMENT = re.compile(r"\(?[a-zA-Z](?: ?, ?[a-zA-Z])*\)?(?: ?\\in ?\\mathbb ?\{[A-Z]\}.{0,4})?")
_PAIRS = {"(": ")", "[": "]", "\\{": "\\}", "\\langle": "\\rangle"}
_SPELL = {"<=": "\\le", ">=": "\\ge", "!=": "\\ne", ":=": "=", "\\equiv": "="}


@dataclass(frozen=True)
class Shape:
    """One node. `kind`: leaf, list, any, union, seq, matrix, relation, ratio.

    `fence` holds a sequence's brackets or a relation's operators; `key` compares as text.
    """

    kind: str
    text: str
    items: tuple[Shape, ...] = ()
    fence: tuple[str, ...] = ()
    key: str = field(default="", compare=False)


@lru_cache(maxsize=4096)
def shape(text: str) -> Shape:
    """The structure of an answer as it was written."""
    return _shape(clean(text), 0)


def _shape(text: str, depth: int) -> Shape:
    text = text.strip(" ,;")
    if outward := _OUTWARD.fullmatch(text):  # ]0,1[ is another way to write (0,1)
        left, inner, right = outward.groups()
        text = ("(" if left == "]" else "[") + inner + (")" if right == "[" else "]")
    key = squeeze(text)
    if depth > 12:
        return Shape("leaf", text, key=key)

    def made(kind: str, parts: list[str], fence: tuple[str, ...] = ()) -> Shape:
        items = tuple(_shape(clean(part), depth + 1) for part in parts)
        return Shape(kind, text, items, fence, key)

    def flat(kind: str, parts: list[str]) -> Shape:
        """A list whose members may be lists again: `2, \\pm 3 and 4`."""
        items: list[Shape] = []
        for item in made(kind, parts).items:
            items.extend(item.items if item.kind == "list" else [item])
        return Shape(kind, text, tuple(items), (), key)

    for pattern, kind in ((_OR, "any"), (_AND, "list"), (_CUP, "union")):
        parts, _ = cut(text, pattern)
        if len(parts) > 1:
            return flat(kind, parts) if kind == "list" else made(kind, parts)
    if not _THOUSANDS.match(text):
        parts, _ = cut(text, _COMMA)
        if len(parts) > 1:
            parts = [part for part in parts if not _CONDITION.fullmatch(part)] or parts
            return (
                flat("list", _same_name(parts)) if len(parts) > 1 else _shape(parts[0], depth + 1)
            )
    else:
        parts, _ = cut(text, re.compile(r",(?!\d{3}(?:\D|$))"))
        if len(parts) > 1:
            return flat("list", parts)
    if _TUPLES.fullmatch(text):  # (1,2)(3,4) is a list without its commas
        return made("list", re.findall(r"\([^()]*\)", text))
    parts, _ = cut(text, _IN)
    if len(parts) == 2 and parts[0]:
        return _shape(clean(parts[1]), depth + 1)
    parts, operators = cut(text, _RELATION)
    if len(parts) > 1 and parts[-1]:
        signs = tuple(_SPELL.get(sign, sign) for sign in operators)
        return made("relation", parts, signs)
    matrix = _MATRIX.match(_strip_fence(text))
    if matrix and matrix.group(1) != "v" and matrix.group(2).count("\\begin") == 0:
        return _matrix(matrix.group(2), text, key, depth)
    scaled = _SCALED.fullmatch(text)
    if scaled and not fence_of(text) and scaled.group(3).count("\\begin") == 0:
        return _matrix(scaled.group(3), text, key, depth, scaled.group(1))
    fence = fence_of(text)
    if fence:
        return _fenced(text, fence, key, depth)
    if _SIGN.search(text):
        signed = _expand_signs(text)
        if len(signed) > 1:
            return flat("list", signed)
    parts, _ = cut(text, _COLON)
    if len(parts) > 1 and all(parts) and "\\text" not in text:
        return made("ratio", parts)
    return Shape("leaf", text, key=key)


def _fenced(text: str, fence: tuple[str, str], key: str, depth: int) -> Shape:
    """What stands in one pair of brackets."""
    inner = text[len(fence[0]) : -len(fence[1])].strip()
    if fence[0] == "\\{":
        condition, _ = cut(inner, _BAR)
        if len(condition) == 2 and condition[1] and _ELEMENT.fullmatch(condition[0]):
            return _shape(clean(condition[1]), depth + 1)
    parts, _ = cut(inner, _COMMA)
    if len(parts) == 1 and fence[0] != "\\{":
        if fence == ("(", ")") and re.fullmatch(r"(?:\\text\{ ?)?[A-Z] ?\}?", inner):
            return Shape("leaf", text, key=key)  # the choice (A)
        return _shape(inner, depth + 1)
    items: list[Shape] = []
    for part in parts if inner else []:
        item = _shape(clean(part), depth + 1)
        items.extend(item.items if fence[0] == "\\{" and item.kind == "list" else [item])
    if fence == ("\\langle", "\\rangle"):
        fence = ("(", ")")
    return Shape("seq", text, tuple(items), fence, key)


def _matrix(body: str, text: str, key: str, depth: int, factor: str = "") -> Shape:
    items = []
    factor += "1" if factor == "-" else ""
    for row in re.split(r"\\\\(?:\s?\[[^\]]*\])?", body):
        if row.replace("\\hline", "").strip():
            cells = [
                _shape(clean(f"({factor})*({cell})" if factor else cell), depth + 1)
                for cell in row.split("&")
            ]
            items.append(Shape("row", row, tuple(cells)))
    return Shape("matrix", text, tuple(items), (), key)


def _strip_fence(text: str) -> str:
    """A matrix may stand in brackets of its own, as an array does."""
    return text[1:-1].strip() if re.match(r"[(\[]\s?\\begin", text) and fence_of(text) else text


def cut(text: str, pattern: re.Pattern[str]) -> tuple[list[str], list[str]]:
    """Split where the pattern matches outside all brackets; also what matched."""
    parts, found, depth, last, place = [], [], 0, 0, 0
    if not pattern.search(text):  # the walk below is slow, and mostly for nothing
        return [text.strip()], []
    while place < len(text):
        match = pattern.match(text, place) if depth == 0 else None
        if match and match.end() > place:
            parts.append(text[last:place].strip())
            found.append(match.group())
            place = last = match.end()
            continue
        if step := _bracket(text, place):
            depth, place = max(0, depth + step[0]), step[1]
            continue
        place += 2 if text.startswith(("\\\\", "\\%"), place) else 1
    parts.append(text[last:].strip())
    kept = [part for part in parts if part] if pattern in (_AND, _COMMA, _CUP, _OR) else parts
    return kept, found


def _bracket(text: str, place: int) -> tuple[int, int] | None:
    """Whether a bracket opens (1) or closes (-1) here, and where it ends."""
    for pattern, step in ((_OPEN, 1), (_CLOSE, -1)):
        if found := pattern.match(text, place):
            return step, found.end()
    return None


def fence_of(text: str) -> tuple[str, str] | None:
    """The pair of brackets around the whole text, where there is one; `(1,2]` counts."""
    opening = next((sign for sign in _PAIRS if text.startswith(sign)), None)
    if opening is None:
        return None
    wanted = (")", "]") if opening in "([" else (_PAIRS[opening],)
    closing = next((sign for sign in wanted if text.endswith(sign)), None)
    if closing is None or len(text) < len(opening) + len(closing):
        return None
    depth, place = 0, 0
    while place < len(text):
        step = _bracket(text, place)
        depth, place = (depth + step[0], step[1]) if step else (depth, place + 1)
        if step and step[0] < 0 and depth == 0 and place < len(text):
            return None
    return (opening, closing) if depth == 0 else None


def _same_name(parts: list[str]) -> list[str]:
    """`n=3,4,7` names one unknown three times over."""
    first = re.fullmatch(r"([A-Za-z](?:_\d)?)\s?=(.*)", parts[0])
    if first and not any(_RELATION.search(part) for part in parts[1:]):
        return [first.group(2), *parts[1:]]
    return parts


def _expand_signs(text: str) -> list[str]:
    r"""The values that `\pm` stands for; every further `\pm` doubles them, `\mp` is tied."""
    if "\\pm" not in text:
        text = text.replace("\\mp", "\\pm")
    count = len(re.findall(r"\\pm(?![a-zA-Z])", text))
    if not 0 < count <= 3:
        return [text]
    values = []
    for choice in range(2**count):
        signs = ["+-"[choice >> place & 1] for place in range(count)]
        opposite = "-" if signs[0] == "+" else "+"
        left = iter(signs)
        value = re.sub(r"\\pm(?![a-zA-Z])", lambda _, left=left: next(left), text)  # type: ignore[misc]
        values.append(re.sub(r"\\mp(?![a-zA-Z])", opposite, value))
    return values

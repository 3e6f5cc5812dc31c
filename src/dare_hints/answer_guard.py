"""Where does a piece of text give a known answer away?

The guard is deliberately one-sided: a harmless fragment lost costs a little hint, a leaked answer
turns a hard prompt into copying. So signs are ignored, every digit run counts (exponents and
indices too), and what merely looks like the answer is treated as the answer.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate, islice, pairwise, permutations

_THIN = "\x1f"  # a LaTeX thin space: nothing in an expression, a separator inside 1\,000
_DEGREES = (r"\circ", r"\degree", "\u00b0", "\u00ba")
_FRACTIONS = (r"\frac", r"\dfrac", r"\tfrac", r"\cfrac")
_TOKEN = re.compile(
    r"\\(?:begin|end)\s?\{[A-Za-z*]{0,20}\}|\\[A-Za-z]+|\\.|\{,\}|[0-9]+|[A-Za-z]+|\s+|.", re.S
)
_PLAIN = {
    **dict.fromkeys([r"\left", r"\right", r"\big", r"\Big", r"\bigl", r"\bigr"], ""),
    **dict.fromkeys([r"\,", r"\!", r"\;", r"\:"], _THIN),
    **dict.fromkeys(["$", r"\$", r"\(", r"\)", r"\[", r"\]", r"\ ", "~", "{", "}"], " "),
    **dict.fromkeys([r"\text", r"\textbf", r"\textrm", r"\mbox", r"\mathrm", r"\mathbf"], " "),
    **dict.fromkeys([r"\quad", r"\qquad", r"\displaystyle", r"\boxed", r"\fbox"], " "),
    **dict.fromkeys([r"\cdot", r"\times", r"\ast", "\u00d7", "\u00b7", "\u22c5"], "*"),
    **dict.fromkeys([r"\div", "\u00f7", "\u2215"], "/"),
    **dict.fromkeys(["\u2212", "\u2010", "\u2011", "\u2013", "\u2014"], "-"),
    **dict.fromkeys([r"\\", "&", "{,}", r"\cup", "\u222a"], ","),
    **dict.fromkeys([r"\le", r"\leq", r"\leqslant"], "\u2264"),
    **dict.fromkeys([r"\ge", r"\geq", r"\geqslant"], "\u2265"),
    **dict.fromkeys([r"\infty", "\u221e"], " inf "),
    **{r"\%": "%", "\u03c0": " pi ", "\u221a": " sqrt ", "\u00b1": " pm ", r"\{": "(", r"\}": ")"},
}


@lru_cache(maxsize=4096)
def _spell(token: str) -> str:
    """One token in plain characters."""
    if token in _PLAIN:
        return _PLAIN[token]
    if token[0] == "\\" and len(token) > 1:
        return " " if "{" in token else f" {token[1:]} "
    if token.isascii():
        return " " if token.isspace() else token
    if unicodedata.category(token[0]) == "Cf":
        return ""  # a zero-width character would otherwise split a number in two
    kind = unicodedata.decomposition(token[0])
    mark = "^" if kind.startswith("<super>") else " " if kind.startswith("<fraction>") else ""
    plain = unicodedata.normalize("NFKC", token).replace("\u2044", "/")
    return mark + "".join(str(unicodedata.decimal(c, c)) for c in plain)


class View:
    r"""A text as plain mathematics: `\dfrac12` reads `1/2`, `1{,}000` reads `1,000`."""

    def __init__(self, text: str) -> None:
        self._pieces: list[str] = []
        self._starts: list[int] = []  # where in `text` each piece comes from
        self._depth = 0
        self._fractions: list[list[int]] = []  # open ones: [brace depth, arguments still to come]
        for match in _TOKEN.finditer(text):
            self._read(match[0], match.start())
        self.plain = "".join(self._pieces)

    def source(self, index: int) -> int:
        """The offset in the text of a character of `plain`."""
        return self._starts[bisect_right([*accumulate(map(len, self._pieces))], index)]

    def _emit(self, piece: str, start: int) -> None:
        self._pieces.append(piece)
        self._starts.append(start)

    def _read(self, token: str, start: int) -> None:
        if token in _FRACTIONS:
            self._fractions.append([self._depth, 2])
            return self._emit(" ", start)
        if token in _DEGREES:
            while self._pieces and self._pieces[-1] in (" ", "^"):
                self._pieces.pop()
                self._starts.pop()
            return self._emit("\u00b0", start)
        while token.isdecimal() and self._awaits_argument():
            self._emit(token[0], start)  # \frac12: each digit is an argument
            self._end_argument(start)
            token = token[1:]
        if not token:
            return None
        self._depth = max(0, self._depth + (token == "{") - (token == "}"))
        self._emit(_spell(token), start)
        if token == "}" or (token != "{" and self._awaits_argument() and not token.isspace()):
            self._end_argument(start)
        return None

    def _awaits_argument(self) -> bool:
        return bool(self._fractions) and self._fractions[-1][0] == self._depth

    def _end_argument(self, start: int) -> None:
        while self._fractions and self._fractions[-1][0] >= self._depth:
            top = self._fractions[-1]
            top[1] -= 1
            if top[1] == 1 and top[0] == self._depth:
                return self._emit("/", start)
            self._fractions.pop()  # a finished fraction may itself be an argument: go on
            self._emit(" ", start)
        return None


class _Squeezed:
    """A text in lower case without some of its characters."""

    def __init__(self, text: str, drop: str) -> None:
        self._text, self._drop = text, drop
        self.text = text.translate(dict.fromkeys(map(ord, drop))).lower()

    def find(self, needle: str) -> int:
        """Offset of `needle` in the text before squeezing, or -1."""
        skip = self.text.find(needle)
        kept = (i for i, char in enumerate(self._text) if char not in self._drop)
        return skip if skip < 0 else next(islice(kept, skip, None), 0)


_NUMBER = re.compile(
    rf"(?<![\d.])\d{{1,3}}(?:(?:,{_THIN}?|{_THIN}| |')\d{{3}})+(?!\d)(?:\.\d+)?"
    r"|(?<!\d)\d*\.\d+|\d+|[A-Za-z]+"
)
_ONES = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
    "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen",
    "nineteen",
]  # fmt: skip
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_CARDINALS = {
    **{word: Fraction(n) for n, word in enumerate(_ONES)},
    **{word: Fraction(10 * n) for n, word in enumerate(_TENS, 2)},
    **dict.fromkeys(["twice", "double", "doubled", "doubles", "pair", "couple"], Fraction(2)),
    **dict.fromkeys(["thrice", "triple", "tripled", "triples"], Fraction(3)),
}
_SCALES = {"dozen": 12, "hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9}
_IRREGULAR = {"first": 1, "second": 2, "third": 3, "fifth": 5, "eighth": 8, "ninth": 9}
_PARTS = {  # ordinals, which double as the names of unit fractions
    **{re.sub("y$", "ie", w) + "th": int(v) for w, v in _CARDINALS.items() if w[-1] not in "ed"},
    **_IRREGULAR,
    **{"half": 2, "halve": 2, "quarter": 4, "twelfth": 12, "hundredth": 100, "thousandth": 1000},
}
_LINK = re.compile(r"[\s-]*(?:(?:and|of|an?)[\s-]+){0,2}", re.I)
_PERCENT = re.compile(r"\s*(?:%|per ?cent|cents?\b|\u00a2)", re.I)
_BAR = re.compile(r"[\s\u00b0%)]*/[\s(-]*")
_AND = re.compile(r"\s*(?:and\s+)?")
_MAX_DIGITS = 60  # longer runs are compared as text: int() refuses more than 4300 digits


@lru_cache(maxsize=4096)
def _atom(text: str) -> tuple[str, Fraction] | None:
    if not text[0].isalpha():
        digits = re.sub(rf"[,{_THIN} ']", "", text).lstrip("0") or "0"
        return ("digits", Fraction(digits)) if len(digits) <= _MAX_DIGITS else None
    word = text.lower()
    single = word.removesuffix("s") if word not in _CARDINALS else word
    if word in _CARDINALS:
        return "cardinal", _CARDINALS[word]
    if single in _SCALES:
        return "scale", Fraction(_SCALES[single])
    single = "half" if word in ("halves", "halved") else single
    return ("part", Fraction(1, _PARTS[single])) if single in _PARTS else None


def _spoken(run: list[tuple[int, int, str, Fraction]]) -> Iterator[Fraction]:
    """What a run such as `two hundred five`, `3 dozen` or `two and a half` can stand for."""
    total, current = Fraction(0), Fraction(0)
    for _, _, kind, value in run[:-1] if run[-1][2] == "part" else run:
        if kind == "scale":
            current = max(current, Fraction(1)) * value
            if value >= 1000:
                total, current = total + current, Fraction(0)
        else:
            current += value
    count = total + current
    if run[-1][2] != "part":
        yield count
    else:
        yield from (count * run[-1][3], count + run[-1][3], count + 1 / run[-1][3])


def numbers(plain: str) -> Iterator[tuple[int, int, Fraction]]:
    """Every magnitude written in a `View.plain`, as (start, end, value); spans may overlap."""
    atoms: list[tuple[int, int, str, Fraction]] = []
    for match in _NUMBER.finditer(plain):
        if (atom := _atom(match[0])) is None:
            continue
        atoms.append((match.start(), match.end(), *atom))
        if atom[0] == "digits" and not match[0].replace(".", "").isdecimal():
            for run in re.finditer(r"[\d.]+", match[0]):  # 3,100 may also be a list
                if inner := _atom(run[0]):
                    yield match.start() + run.start(), match.start() + run.end(), inner[1]
    for start, end, kind, value in atoms:
        yield start, end, value
        if kind == "part" and value not in (Fraction(1, 2), Fraction(1, 4)):
            yield start, end, 1 / value
        if percent := _PERCENT.match(plain, end):
            yield start, percent.end(), value / 100
    for index, (a, b) in enumerate(pairwise(atoms)):
        if b[3] and _BAR.fullmatch(plain, a[1], b[0]):
            yield a[0], b[1], a[3] / b[3]
            before = atoms[index - 1] if index else None
            if before and _AND.fullmatch(plain, before[1], a[0]):
                yield before[0], b[1], before[3] + a[3] / b[3]
    for index in range(len(atoms)):
        for stop in range(index + 2, min(index + 7, len(atoms) + 1)):
            a, b = atoms[stop - 2 : stop]
            if b[2] == "digits" or not _LINK.fullmatch(plain, a[1], b[0]):
                break
            for value in _spoken(atoms[index:stop]):
                yield atoms[index][0], b[1], value


_BLANK = " \t\n\r\u00a0"
_DROP = f"{_BLANK}*()[]\u00b0{_THIN}"
_FUNCTION = re.compile(
    r"[a-z]|sqrt|pi|inf|sin|cos|tan|csc|sec|cot|log|ln|exp|pm|binom|overline", re.I
)
_UNIT = re.compile(r"\\(?:text|textrm|mbox|mathrm)\s?\{[^{}]{0,80}\}|\^\s?\{?[23]\}?\s*$")
_NAME = re.compile(
    r"^\s*(?:[A-Za-z]{1,3}|[A-Za-z]\w?\([A-Za-z]\))\s*(?:=|<|>|\u2264|\u2265|in\b|:)"
)
_SCIENTIFIC = re.compile(r"\s*-?\s*(\d+(?:\.\d+)?)\s*(?:e[+-]?\d|\*\s*10\s*\^)", re.I)
_SEPARATOR = re.compile(r"[,;:]|\bor\b|\band\b")
_MAX_ENTRIES = 24
_MAX_ANSWER = 1000  # no fragment is as long as that


class _Seen(View):
    """The readings of one fragment that answers are looked up in."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.numbers = list(numbers(self.plain))
        self.flat = _Squeezed(self.plain, _DROP)
        self.joined = _Squeezed(self.plain, f",{_THIN}")
        self.raw = _Squeezed(text, _BLANK + "${}")


def _number(plain: str) -> tuple[Fraction, str] | None:
    """The value and digits of an answer whose every other character is a unit, sign or base."""
    spans = [(b - a, a, b, v) for a, b, v in numbers(plain)]
    if not spans:
        return None
    _, start, end, value = max(spans, key=lambda span: span[0])
    rest = plain[:start] + " " + re.sub(r"^\s*_\s*\d+", "", plain[end:])
    if any(_FUNCTION.fullmatch(word) for word in re.findall(r"[A-Za-z]+", rest)):
        return None
    if re.search(r"[^A-Za-z\s()\[\]%.,'\u00b0+-]", rest):
        return None
    return value, re.sub(rf"[,\s{_THIN}]", "", plain[start:end])


class _Form:
    """One way an answer, or one entry of a tuple, can be recognised."""

    def __init__(self, plain: str) -> None:
        self.values: set[Fraction] = set()
        self.digits: set[str] = set()  # 2 in 12: not the answer, but avoided all the same
        self.texts: set[str] = set()
        self.short: re.Pattern[str] | None = None
        flat = _Squeezed(plain, _DROP).text.strip(".,;+")
        number = _number(plain)
        if number is not None:
            value, written = number
            self.values = {value, value * 100} if "%" in plain else {value}
            self.digits = {written.strip("%"), *map(str, self.values)}
            self.texts = {digits for digits in self.digits if len(digits) > 1}
        elif len(flat.lstrip("-")) > 2:
            self.texts = set(_rewritten(flat))
        elif flat.strip("-"):
            shown = [c for c in plain if c not in _DROP]
            body = r"[\s*]*".join(map(re.escape, "".join(shown).strip("-.,;+")))
            self.short = re.compile(rf"(?<![A-Za-z0-9]){body}(?![A-Za-z0-9])")

    def __bool__(self) -> bool:
        return bool(self.values or self.texts or self.short)

    def hits(self, seen: _Seen) -> Iterator[int]:
        """Offsets at which a fragment shows this form."""
        for start, end, value in seen.numbers if self.values else ():
            written = seen.plain[start:end]
            decimals = len(written.partition(".")[2]) if written[-1:].isdecimal() else 0
            if value in self.values or any(_rounds(value, v, decimals) for v in self.values):
                yield seen.source(start)
        for needle in self.texts:
            if (found := seen.flat.find(needle)) >= 0:
                yield seen.source(found)
        if self.short and (match := self.short.search(seen.plain)):
            yield seen.source(match.start())

    def brushes(self, seen: _Seen) -> Iterator[int]:
        """Offsets at which the digits of this form occur inside some other number."""
        for needle in self.digits:
            if (found := seen.joined.find(needle)) >= 0:
                yield seen.source(found)


def _rounds(value: Fraction, target: Fraction, decimals: int) -> bool:
    """Whether a decimal is the target rounded or cut, or rounds to a whole target of size."""
    if not decimals:
        return False
    if target.denominator == 1:
        return target >= 10 and abs(value - target) <= Fraction(1, 2)
    return decimals > 1 and abs(value - target) < Fraction(1, 10 ** min(decimals, 9))


def _rewritten(flat: str) -> Iterator[str]:
    """Spellings of an expression that differ by term order, sign, or where a bar sits."""
    yield flat.lstrip("-")
    yield re.sub(r"(?<=.)[+-]", "pm", flat)
    if "pm" in flat:
        yield from (flat.replace("pm", "+"), flat.replace("pm", "-"))
    terms = re.findall(r"[+-]?[^+-]+", flat)
    if 2 <= len(terms) <= 3 and "".join(terms) == flat:
        signed = [t if t[0] in "+-" else "+" + t for t in terms]
        yield from ("".join(order).lstrip("+") for order in permutations(signed))
    if match := re.fullmatch(r"-?(\d*)([a-z][^/]*)/(\d+)", flat):
        yield f"{match[1] or 1}/{match[3]}{match[2]}"
    elif match := re.fullmatch(r"-?(\d+)/(\d+)([a-z].*)", flat):
        yield f"{'' if match[1] == '1' else match[1]}{match[3]}/{match[2]}"


def _entries(plain: str) -> list[_Form]:
    """The entries of an answer such as (3, 5), [1, 4), `2 or 7` or a matrix, infinities apart."""
    pieces = _SEPARATOR.split(plain)
    names = {piece.strip("()[] -+\t") for piece in pieces} - {"", "inf"}
    if not 1 < len(pieces) <= _MAX_ENTRIES:
        return []
    return [form for name in sorted(names) if (form := _Form(_NAME.sub("", name)))]


class AnswerGuard:
    """Finds where a text shows one of `answers` (the first is the gold one), however written."""

    def __init__(self, answers: Iterable[str]) -> None:
        shown = (answer.strip()[:_MAX_ANSWER] for answer in answers)
        self.forms: list[_Form] = []
        self.raw: set[str] = set()
        self.entries: list[_Form] = []
        for answer in dict.fromkeys(answer for answer in shown if answer):
            raw = _Squeezed(answer, _BLANK + "${}").text
            self.raw |= {raw, raw.lstrip("-")}
            plain = View(answer).plain
            readings = {plain, View(_UNIT.sub(" ", answer)).plain, re.sub(r"=\s*0\s*$", "", plain)}
            readings |= {_NAME.sub("", reading) for reading in readings}
            if power := _SCIENTIFIC.match(plain):
                readings.add(power[1])
            forms = [form for reading in sorted(readings) if (form := _Form(reading))]
            self.forms += forms
            if not self.entries and not any(form.values for form in forms):
                self.entries = _entries(_NAME.sub("", plain))

    def first_leak(self, text: str) -> int | None:
        """Offset at which `text` begins to show an answer, or None."""
        seen = _Seen(text)
        found = [hit for form in self.forms for hit in (*form.hits(seen), *form.brushes(seen))]
        for needle in self.raw:
            # One letter is a variable or an article; only _Form.short, with boundaries, may judge.
            if len(needle) > 1 and (at := seen.raw.find(needle)) >= 0:
                found.append(at)
        places = [min(entry.hits(seen), default=-1) for entry in self.entries]
        if places and min(places) >= 0:
            found.append(max(places))  # the entry that completes the tuple
        return min(found, default=None)

    def shown_entries(self, text: str) -> frozenset[int]:
        """Which entries of a tuple-like answer `text` shows."""
        if not self.entries:
            return frozenset()
        seen = _Seen(text)
        return frozenset(i for i, entry in enumerate(self.entries) if [*entry.hits(seen)])

"""Units, currency, percentages and moduli after a number."""

from __future__ import annotations

import re
from fractions import Fraction

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

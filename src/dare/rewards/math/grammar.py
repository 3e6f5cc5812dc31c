"""The words of the expression reader: functions, letters, subscripts, brackets."""

from __future__ import annotations

import re

UNARY = (
    "arcsin|arccos|arctan|arccot|arcsec|arccsc|asin|acos|atan|sinh|cosh|tanh|sin|cos|tan|cot|sec|"
    "csc|ln|log|lg|exp|gcd|lcm|max|min"
)
FUNCTION = re.compile(rf"\\({UNARY})(?![a-zA-Z])|({UNARY})(?![a-zA-Z])")
WORD_CONSTANT = re.compile(r"(pi|sqrt|infinity|inf|oo)(?![a-zA-Z])")
GREEK = (
    r"\\(alpha|beta|gamma|delta|epsilon|zeta|eta|theta|iota|kappa|lambda|mu|nu|xi|rho|sigma|tau|"
    r"upsilon|phi|chi|psi|omega|Gamma|Delta|Theta|Lambda|Xi|Sigma|Phi|Psi|Omega|ell|hbar)"
    r"(?![a-zA-Z])"
)
NAME = re.compile(rf"{GREEK}|([A-Za-z])|\\text\{{\s*([A-Za-z])\s*\}}|\\mathbb\s*\{{([A-Z])\}}")
SUBSCRIPT = re.compile(
    r"\s?_\s?(?:([A-Za-z0-9])|\{\s*\\text\{\s*([A-Za-z0-9, ]+?)\s*\}\s*\}"
    r"|\{\s*\\?([A-Za-z0-9, +-]+?)\s*\}|\\text\{\s*([A-Za-z0-9, ]+?)\s*\})"
)
CALLED = frozenset("fghFG")
CALL = re.compile(r"\(\s?-?\d+\s?\)(?!\s?\^)")
CALL_ANY = re.compile(r"\([^()]*\)")
ACCENT = re.compile(r"\\(vec|hat|dot|ddot|tilde|widehat|overrightarrow)(?![a-zA-Z])")
BASE = re.compile(r"\s?_\s?(?:(\d+)|\{\s*\(?(\d+)\)?\s*\}|\{\s*\\text\{\s*([a-z]+)\s*\}\s*\})")
BASED = re.compile(r"((?=[A-Z.]*[0-9])[0-9A-Z.]++)(?=\s?_\s?[\d{])")
BASES = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8}
BASES |= {"nine": 9, "ten": 10, "eleven": 11, "twelve": 12, "sixteen": 16}
FENCES = {"(": ")", "[": "]", "{": "}", "\\lfloor": "\\rfloor", "\\lceil": "\\rceil", "|": "|"}
STOP = re.compile(r"[-+*/=<>,;:)\]}|!^%']|\\(?:rfloor|rceil|\}|%|pm|mp|ldots)|$")

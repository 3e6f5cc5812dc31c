"""A second opinion on how much of a program a text shows; shares no code with the package's guard.

A program is its logical lines as Python's tokenizer cuts them, each a sequence of words and signs.
A text shows a line when it holds the same sequence somewhere. Round brackets, the colon at the end,
and the kind of quotes do not count; nor do lines without content of their own and lines that the
prompt has.
"""

import io
import re
import tokenize

_SKIPPED = {
    "def", "class", "import", "from", "else", "try", "finally", "except", "pass", "break",
    "continue", "@", "async",
}  # fmt: skip
_BLANK = {tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def _words(text: str) -> str:
    found = re.findall(r"\w+|[^\w\s]", text.replace('"', "'").replace("`", " "))
    return " ".join(["", *(word for word in found if word not in "();"), ""])


def lines(program: str, prompt: str) -> list[str]:
    """The distinct lines that count."""
    known, found, line = _words(prompt), dict[str, None](), list[tokenize.TokenInfo]()
    for token in tokenize.generate_tokens(io.StringIO(program).readline):
        if token.type != tokenize.NEWLINE:
            line += [token] if token.type not in _BLANK else []
            continue
        text = _words(" ".join(part.string for part in line)).removesuffix(": ").rstrip() + " "
        bare = text.strip() == "return" or all(part.type == tokenize.STRING for part in line)
        if line[0].string not in _SKIPPED and not bare and text not in known:
            found[text] = None
        line = []
    return list(found)


def shown(program: str, prompt: str, text: str) -> tuple[int, int]:
    """How many of the program's lines a text shows, and how many there are."""
    own, said = lines(program, prompt), _words(text)
    return sum(line in said for line in own), len(own)

"""Tokens of C, C++ and CUDA text, without comments and, but for assembly, without strings."""

from __future__ import annotations

import re
from dataclasses import dataclass

_TOKEN = re.compile(
    r"""
    (?P<space>\s+)
  | (?P<comment>//[^\n]*|/\*.*?(?:\*/|\Z))
  | (?P<raw>(?:u8|[uUL])?R"(?P<mark>[^()\\\s"]{0,16})\(.*?(?:\)(?P=mark)"|\Z))
  | (?P<string>(?:u8|[uUL])?"(?:\\.|[^"\\\n])*(?:"|(?=\n)|\Z))
  | (?P<number>\.?\d(?:'?[\w.]|(?<=[eEpP])[+-])*)
  | (?P<char>(?:u8|[uUL])?'(?:\\.|[^'\\\n])*(?:'|(?=\n)|\Z))
  | (?P<word>[A-Za-z_$]\w*)
  | (?P<sign>::|->|\+\+|--|\#\#|.)
    """,
    re.VERBOSE | re.DOTALL,
)
_ASM = frozenset(["asm", "__asm__", "__asm"])


@dataclass(frozen=True)
class Token:
    """A word, number or sign; of an asm statement also the strings, with kind "assembly".

    `line` counts from 0. Other strings have kind "string" and are no code.
    """

    kind: str
    text: str
    line: int


def tokens(text: str) -> list[Token]:
    """The tokens; words joined by ## are one."""
    # A line that ends in a backslash goes on in the next one, in comments too. The lines are
    # counted in the text as it was, so each join leaves its newline for the next end of line.
    found: list[Token] = []
    line, depth, asm_depth = 0, 0, -1
    for match in _TOKEN.finditer(_splice(text)):
        kind, word = match.lastgroup or "sign", match.group()
        if kind == "mark":
            kind = "raw"
        if kind == "word" and word in _ASM:
            asm_depth = depth
        elif word == "(" and kind == "sign":
            depth += 1
        elif word == ")" and kind == "sign":
            depth -= 1
            if depth <= asm_depth:
                asm_depth = -1
        in_asm = asm_depth >= 0 and depth > asm_depth
        if kind in ("string", "raw"):
            kind = "assembly" if in_asm else "string"
        if kind not in ("space", "comment", "char"):
            if kind == "word" and len(found) > 1 and found[-1].text == "##":
                found.pop()
                left = found.pop()
                found.append(Token("word", left.text + word, line))
            else:
                found.append(Token(kind, word, line))
        line += word.count("\n") + word.count("\x1f")
    return found


def _splice(text: str) -> str:
    # \x1f is no newline, and takes no part in any token but a space or a comment.
    spliced = re.sub(r"\\[ \t]*\r?\n", "\x1f", text.replace("\x1f", " "))
    return re.sub(r"(?<=\w)\x1f(?=\w)", "", spliced)

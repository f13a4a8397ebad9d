"""The words of filters and search queries: one lexer for both.

"…"            a string; a backslash takes the next character as it is
( ) : - > < = >= <=   marks; `-` is one only where a word could begin
anything else  a word, up to white space or one of ( ) : > < =
"""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple

from millstream.errors import InvalidRequest
from millstream.limits import QUERY_CHARACTERS_MAX


class Language(NamedTuple):
    """How errors speak of what is being parsed, and whether a term may stand without a field."""

    name: str
    string: str
    clause: str
    empty: str
    has_bare_terms: bool


FILTER = Language("filter", "filter string", "filter clause", "filter must not be empty", False)
QUERY = Language(
    "search query", "query string", "fielded search clause", "q must not be empty", True
)


class Kind(Enum):
    WORD = "word"
    STRING = "string"
    OPERATOR = "operator"  # > < = >= <=
    MARK = "mark"  # ( ) : -
    END = "end"


class Token(NamedTuple):
    kind: Kind
    text: str  # of a string: without quotes and escapes

    def is_mark(self, mark: str) -> bool:
        return self.kind is Kind.MARK and self.text == mark

    def is_keyword(self, keyword: str) -> bool:
        """AND, OR and NOT are not case-sensitive."""
        return self.kind is Kind.WORD and self.text.upper() == keyword


END = Token(Kind.END, "")

_TOKEN = re.compile(
    r"""\s+
    | (?P<word>     [^\s():><=\-"] [^\s():><=]* )
    | (?P<operator> >= | <= | [><=] )
    | (?P<mark>     [():\-] )
    | "(?P<string>  (?: [^"\\] | \\. )* )"
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)


def split_words(text: str, language: Language) -> list[Token]:
    """The tokens, with END behind them. Raises InvalidRequest and nothing else."""
    if not text.strip():
        raise InvalidRequest(language.empty)
    if len(text) > QUERY_CHARACTERS_MAX:
        raise InvalidRequest(f"{language.name} must not exceed {QUERY_CHARACTERS_MAX} characters")
    tokens: list[Token] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise _unterminated(text[position:], language)
        if match.lastgroup is not None:
            tokens.append(_token(Kind(match.lastgroup), match[match.lastgroup]))
        position = match.end()
    tokens.append(END)
    return tokens


def _token(kind: Kind, text: str) -> Token:
    return Token(kind, _ESCAPE.sub(r"\1", text) if kind is Kind.STRING else text)


def _unterminated(rest: str, language: Language) -> InvalidRequest:
    """Only a string can fail to end."""
    backslashes = len(rest) - len(rest.rstrip("\\"))
    if backslashes % 2:
        return InvalidRequest(f"unterminated escape in {language.string}")
    return InvalidRequest(f"unterminated quoted string in {language.name}")

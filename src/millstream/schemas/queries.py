"""Syntax trees of filters and search queries, and the parser that makes them of words.

    or      = and , { "OR" , and } ;
    and     = unary , { [ "AND" ] , unary } ;
    unary   = { "NOT" | "-" } , primary ;
    primary = "(" , or , ")" | "has" , ":" , WORD
            | WORD , ":" , [ OPERATOR ] , ( WORD | STRING )
            | WORD | STRING ;                       (* where the language has bare terms *)

What the words mean to a stream is not known here: see filters.py and query_checks.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from millstream.errors import InvalidRequest
from millstream.limits import QUERY_CLAUSES_MAX, QUERY_DEPTH_MAX
from millstream.schemas.words import Kind, Language, Token, split_words


@dataclass(frozen=True, slots=True)
class Fielded:
    field: str
    operator: str  # one of = > >= < <=
    value: str
    is_quoted: bool


@dataclass(frozen=True, slots=True)
class Bare:
    value: str
    is_quoted: bool


@dataclass(frozen=True, slots=True)
class Has:
    field: str


@dataclass(frozen=True, slots=True)
class Not:
    inner: Query


@dataclass(frozen=True, slots=True)
class And:
    parts: tuple[Query, ...]


@dataclass(frozen=True, slots=True)
class Or:
    parts: tuple[Query, ...]


Clause: TypeAlias = Fielded | Bare | Has
Query: TypeAlias = Clause | Not | And | Or


def parse_query(text: str, language: Language) -> Query:
    """Raises InvalidRequest and nothing else. The tree is at most `QUERY_DEPTH_MAX` brackets deep
    and has at most `QUERY_CLAUSES_MAX` clauses."""
    parser = _Parser(split_words(text, language), language)
    query = parser.parse_or()
    parser.expect_end()
    return query


class _Parser:
    def __init__(self, tokens: list[Token], language: Language) -> None:
        self._tokens = tokens  # END is the last and is never taken
        self._language = language
        self._position = 0
        self._depth = 0
        self._clauses = 0

    def parse_or(self) -> Query:
        parts = [self._parse_and()]
        while self._takes_keyword("OR"):
            parts.append(self._parse_and())
        return parts[0] if len(parts) == 1 else Or(tuple(parts))

    def expect_end(self) -> None:
        if self._next.kind is not Kind.END:
            raise InvalidRequest(f"unexpected token in {self._language.name}")

    def _parse_and(self) -> Query:
        parts = [self._parse_unary()]
        while not self._is_at_end_of_and():
            self._takes_keyword("AND")
            parts.append(self._parse_unary())
        return parts[0] if len(parts) == 1 else And(tuple(parts))

    def _is_at_end_of_and(self) -> bool:
        token = self._next
        return token.kind is Kind.END or token.is_mark(")") or self._is_at_keyword("OR")

    def _parse_unary(self) -> Query:
        negations = 0
        while self._takes_mark("-") or self._takes_keyword("NOT"):
            negations += 1
        query = self._parse_primary()
        if negations % 2:
            return Not(query)
        return Not(Not(query)) if negations else query  # which is scored unlike the query itself

    def _parse_primary(self) -> Query:
        if self._takes_mark("("):
            return self._parse_brackets()
        token = self._take_value()
        if token is None:
            raise InvalidRequest(f"expected clause in {self._language.name}")
        self._clauses += 1
        if self._clauses > QUERY_CLAUSES_MAX:
            raise InvalidRequest(
                f"{self._language.name} must not have more than {QUERY_CLAUSES_MAX} clauses"
            )
        if token.kind is Kind.WORD and self._takes_mark(":"):
            return self._parse_has() if token.text == "has" else self._parse_fielded(token.text)
        if self._language.has_bare_terms:
            return Bare(token.text, token.kind is Kind.STRING)
        if token.kind is Kind.STRING:
            raise InvalidRequest(f"expected field name in {self._language.name}")
        raise InvalidRequest(f"expected ':' in {self._language.clause}")

    def _parse_brackets(self) -> Query:
        self._depth += 1
        if self._depth > QUERY_DEPTH_MAX:
            raise InvalidRequest(
                f"{self._language.name} must not have more than {QUERY_DEPTH_MAX} open brackets"
            )
        query = self.parse_or()
        if not self._takes_mark(")"):
            raise InvalidRequest(f"missing ')' in {self._language.name}")
        self._depth -= 1
        return query

    def _parse_has(self) -> Query:
        token = self._take_value()
        if token is None or token.kind is not Kind.WORD:
            raise InvalidRequest("has: requires a field name")
        return Has(token.text)

    def _parse_fielded(self, field: str) -> Query:
        if field == "contains" and self._language.has_bare_terms:
            raise InvalidRequest("contains: is not supported on _search yet")
        operator = self._take().text if self._next.kind is Kind.OPERATOR else "="
        token = self._take_value()
        if token is None:
            raise InvalidRequest(f"expected value in {self._language.clause}")
        return Fielded(field, operator, token.text, token.kind is Kind.STRING)

    # Tokens

    @property
    def _next(self) -> Token:
        return self._tokens[self._position]

    def _take(self) -> Token:
        token = self._next
        self._position += 1
        return token

    def _take_value(self) -> Token | None:
        return self._take() if self._next.kind in (Kind.WORD, Kind.STRING) else None

    def _takes_mark(self, mark: str) -> bool:
        is_there = self._next.is_mark(mark)
        self._position += is_there
        return is_there

    def _takes_keyword(self, keyword: str) -> bool:
        is_there = self._is_at_keyword(keyword)
        self._position += is_there
        return is_there

    def _is_at_keyword(self, keyword: str) -> bool:
        """A field may have such a name: `or:1` is a clause."""
        if not self._next.is_keyword(keyword):
            return False
        return not self._tokens[self._position + 1].is_mark(":")

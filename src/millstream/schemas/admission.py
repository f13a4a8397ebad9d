"""Whether a stream takes these messages: its profile puts them in shape, its schema checks them,
and both say which routing key each one has. All of a request or nothing."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from millstream.errors import BodyTooLarge, InvalidRequest, SchemaViolation
from millstream.formats.blocks import Keys
from millstream.limits import BLOCK_BYTES, ROUTING_KEY_BYTES_MAX, RULES_ENTRY_BYTES_MAX
from millstream.protocol.json_pieces import LargeMessages
from millstream.schemas.documents import MISSING, find
from millstream.schemas.messages import decode_sent, encode_message
from millstream.schemas.profiles import profile_of
from millstream.schemas.profiles.profile import GenericProfile
from millstream.schemas.routing_keys import routing_key_of
from millstream.schemas.validation import validator_of
from millstream.state.rules import Rules


class Admitted(NamedTuple):
    content: LargeMessages
    keys: Keys


def admit(rules: Rules, content: LargeMessages, header_key: bytes | None, now_ms: int) -> Admitted:
    """Raises SchemaViolation for the first message that does not keep to the rules, and
    BodyTooLarge for one that is too long to be looked at.

    In steps of one piece, so that a thread that does this lets others have the interpreter.
    """
    _check_sizes(content)
    admission = _Admission(rules, header_key, now_ms)
    pieces: list[bytes] = []
    for piece in content.pieces:
        values = decode_sent(piece)
        if admission.is_plain:
            admission.check(values)
            pieces.append(piece)
            continue
        records = [admission.take(value) for value in values]
        pieces.append(_wire_form(records) if admission.rewrites else piece)
    ends = _ends_of(admission.sizes) if admission.rewrites else content.ends
    return Admitted(LargeMessages(tuple(pieces), ends, content.total), admission.all_keys())


def _check_sizes(content: LargeMessages) -> None:
    """Pieces are of whole messages, and only one that is a single message is much longer than a
    block."""
    longest = max(map(len, content.pieces), default=0)
    allowed = RULES_ENTRY_BYTES_MAX if content.total == 1 else BLOCK_BYTES + RULES_ENTRY_BYTES_MAX
    if longest > allowed:
        raise BodyTooLarge(
            f"an entry of a stream with a schema or profile must not exceed {RULES_ENTRY_BYTES_MAX}"
            " bytes"
        )


class _Admission:
    def __init__(self, rules: Rules, header_key: bytes | None, now_ms: int) -> None:
        self._profile = profile_of(rules)
        self._validator = validator_of(rules.schemas[-1]) if rules.schemas else None
        self._routing = routing_key_of(rules)
        if header_key is not None and self._routing is not None:
            raise InvalidRequest("Stream-Key not allowed when routingKey is configured")
        self._header_key = header_key
        self._now_ms = now_ms
        self._keys: list[bytes | None] = []
        self._taken = 0
        self.rewrites = self._profile.rewrites
        self.is_plain = self._routing is None and isinstance(self._profile, GenericProfile)
        self.sizes: list[int] = []  # of what was rewritten, each with its comma

    def check(self, values: Sequence[Any]) -> None:
        """All there is to do with entries that nothing but a schema looks at: most batches."""
        if self._validator is None:
            return
        problem_of = self._validator.problem
        for value in values:
            problem = problem_of(value)
            if problem is not None:
                raise SchemaViolation(f"message {self._taken}: {problem}")
            self._taken += 1

    def take(self, value: Any) -> bytes:
        """The message as it will be stored; empty when that is as it came."""
        number = self._taken
        self._taken += 1
        try:
            record, profile_key = self._profile.normalise(value, self._now_ms)
            if self._validator is not None:
                problem = self._validator.problem(record)
                if problem is not None:
                    raise SchemaViolation(problem)
            key = self._key_of(record, profile_key)
        except SchemaViolation as error:
            raise SchemaViolation(f"message {number}: {error.message}") from None
        self._keys.append(key)
        if not self.rewrites:
            return b""
        message = encode_message(record)
        self.sizes.append(len(message) + 1)
        return message

    def _key_of(self, record: Any, profile_key: str | None) -> bytes | None:
        if self._routing is not None:
            found = find(record, self._routing.pointer)
            if found is MISSING:
                if self._routing.required:
                    raise SchemaViolation("routing key missing")
                return None
            if not isinstance(found, str):
                raise SchemaViolation("routing key must be string")
            return _key_bytes(found)
        if self._header_key is not None:
            return self._header_key
        return None if profile_key is None else _key_bytes(profile_key)

    def all_keys(self) -> Keys:
        if self.is_plain:
            return self._header_key
        first = self._keys[0] if self._keys else None
        if self._keys.count(first) == len(self._keys):
            return first
        return tuple(self._keys)


def _key_bytes(key: str) -> bytes | None:
    encoded = key.encode(errors="surrogatepass")
    if len(encoded) > ROUTING_KEY_BYTES_MAX:
        raise SchemaViolation(f"a routing key must not exceed {ROUTING_KEY_BYTES_MAX} bytes")
    return encoded or None


def _wire_form(messages: Sequence[bytes]) -> bytes:
    return b",".join(messages) + b","


def _ends_of(sizes: Sequence[int]) -> bytes:
    return array("I", accumulate(sizes)).tobytes() if len(sizes) > 1 else b""

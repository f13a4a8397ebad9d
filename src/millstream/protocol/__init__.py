"""The words of the wire. Pure functions over bytes and numbers; no stream, no socket, no clock."""

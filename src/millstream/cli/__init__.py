"""Commands: parse, call, print, exit code."""

"""Keys, scopes, who may do what.

scopes.py        what a key may be good for, and over which streams
key_text.py      what a key looks like
gate.py          asks of every request whether its key may do this
"""

"""Keys, scopes, who may do what.

scopes.py        what a key may be good for
"""

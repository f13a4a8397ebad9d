"""The core: submits commands, applies what is committed, answers, wakes readers, ends lifetimes.

engine.py        the one place where committed commands become state and answers
lifetimes.py     streams that end by themselves
hot_budget.py    who has to wait when memory is full
off_loop.py      threads for slow work
upkeep.py        one policy for what goes wrong in the background
"""

"""The core: submits commands, applies what is committed, answers, wakes readers, ends lifetimes.

engine.py        the one place where committed commands become state and answers
lifetimes.py     streams that end by themselves
hot_budget.py    who has to wait when memory is full
alarm.py         what wakes a service when there is something to do
threads.py       threads for slow work, awaited; off_loop.py the same with callbacks
timings.py       how long slow work waits
upkeep.py        one policy for what goes wrong in the background
"""

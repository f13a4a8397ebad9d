"""Commands for a folder that no server uses at the moment: nothing in it is ever changed.

replica.py     the state a start would reach, in memory and on copies
verify.py      everything a start would read, checked; consistency.py compares what fits together
salvage.py     what is readable of a damaged folder, in a new one: salvage_base.py finds what to
               build on, salvage_edits.py changes streams that lost something, salvage_report.py
               and leftovers.py tell what was
restore.py     a working folder out of the cold store alone
"""

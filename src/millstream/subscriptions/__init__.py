"""Drives subscriptions: wakes, leases, webhooks. Their rules are in state/.

driver.py        does what each subscription needs next
due_times.py     when which of them has to be looked at
turns.py         whose webhook goes next
webhooks.py      one POST each, to addresses that were checked
watch.py         what operators see: counts, ages, receivers that wake themselves
"""

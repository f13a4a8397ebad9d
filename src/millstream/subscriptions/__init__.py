"""Drives subscriptions: wakes, leases, webhooks. Their rules are in state/.

driver.py        does what each subscription needs next
webhooks.py      one POST each, to addresses that were checked
"""

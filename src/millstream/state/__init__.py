"""The heart: what a stream is and how a command changes it. Pure: no I/O, no clock, no tasks.

`machine.StateMachine.apply` alone decides. Everything it needs, the time included, is in the
command, so that replay after a crash reaches the same state.
"""

"""Nobody holds the event loop: the worst request of each kind, with a watchdog on the loop."""

"""Routes and handlers: HTTP requests become commands and reads, outcomes become answers.

routes.py     every route: path, methods with handler and scope, label
routing.py    what such a table is, and which row a request asks for
app.py        from a request to its handler, past the gate
web_pages.py, cors.py   which web pages may use the server, and what browsers are told
paths.py      which bucket or stream a URL names, and what below it
headers.py    headers that many answers share
arguments.py  headers and query parameters, checked
writes.py     create, append, close, delete
reads.py      HEAD, catch-up, and the parts all read modes share
long_answers.py   answers too long for one write: pieces as the client takes them
compression.py    answers compressed for those who ask
long_poll.py  a reader that waits for one answer
sse.py        readers that stay
subscriptions.py  subscriptions below __ds/, and the streams they follow
wakes.py      what workers do with a wake: callback, claim, ack, release
control.py    what the two share
jobs.py       jobs of the data pipeline: ask, tasks, results, commit
namespace.py  buckets
listings.py   what there is, page by page: streams and buckets
inspection.py what a stream and the server tell of themselves
snapshots.py, bootstrap.py, batches.py, forks.py      what hangs below a stream
flush_cold.py, flush_all.py, retention.py, garbage.py for operators
slow_requests.py  requests that take time, and are answered whatever happens
steps.py      answers made in many short steps
operations.py, json_metrics.py  /health, /healthz, /readyz, /metrics, /__ursula/metrics
errors.py     the one table from errors to status codes
"""

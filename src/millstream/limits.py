"""Bounds that are not settings, each with its reason. Settings with a bound live in config.py."""

from __future__ import annotations

KIB = 1024
MIB = 1024 * KIB

STREAM_PATH_BYTES_MAX = 1024  # what every proxy and browser carries in a URL without complaint
STREAM_PATH_SEGMENTS_MAX = 64  # of a new stream: matching patterns takes a step for each
PRODUCER_ID_BYTES_MAX = 1024  # kept for ever per producer, so it must stay small
STREAM_SEQ_BYTES_MAX = 4 * KIB  # the official suite sends long ones; still far below a header block
ROUTING_KEY_BYTES_MAX = 1024  # kept with every entry, and asked for in URLs
TIME_HINT_AHEAD_MS_MAX = 300_000  # clocks differ by minutes; what is further ahead is a mistake
RULES_INLINE_BYTES = 16 * KIB  # of a body checked against a schema on the loop, a millisecond
RULES_INLINE_COMMAS = 1024  # a smaller body with more of them is checked in a thread, too
RULES_ENTRY_DEPTH_MAX = (
    512  # levels: lenses make it deeper, and it must be printed again after that
)
RULES_ENTRY_BYTES_MAX = MIB  # of one entry that has to be parsed: no parser lets go in between
RULES_TRIES_MAX = 8  # of one request, each met by another change of the rules
FILTER_SCAN_BYTES_MAX = 104_857_600  # looked at for one filtered answer
SHAPED_PAGE_BYTES = MIB  # of entries in one answer that had to be picked or promoted
SHAPED_STEP_BYTES = 256 * KIB  # looked at in a thread before the loop hears of it
SHAPED_INLINE_BYTES = 8 * KIB  # looked at on the loop
SHAPED_SECONDS_MAX = 2.0  # spent on one such answer; it then ends where it is
INTEGER_MAX = 2**53 - 1  # epochs and sequences must survive a JavaScript number
STORED_INTEGER_MAX = 2**63 - 1  # what SQLite, Parquet and MessagePack all keep
TTL_SECONDS_MAX = (
    100 * 365 * 86_400
)  # a century; beyond it arithmetic on dates stops meaning anything

APPEND_MESSAGES_MAX = 256 * KIB  # unless a setting says more: to apply them takes some 10 ms
BATCH_FRAMES_MAX = 512  # one answer entry each; what other servers of this route allow
BATCH_BYTES_MAX = 32 * MIB
BUCKETED_KEY_BYTES_MAX = 122  # bucket, slash and stream on the bucketed surface

QUEUE_LOOK_SECONDS = 0.1  # how long appends wait for the log is known to this much
QUEUE_NEAR_REQUESTS = 10_000  # below the limit from which on each append counts: more than arrive
QUEUE_NEAR_BYTES = 16 * MIB  # between two looks
OVERDUE_AT_ONCE = 500  # appends that waited too long and are answered in one go: some 10 ms
METRIC_SERIES_MAX = 200  # in one window: there are some 60, and as many routes as we have
SYSTEM_LOOK_SECONDS = 60.0  # whether old records have to go, when none are written by the clock
SYSTEM_MEMORY_BYTES = 16 * MIB  # of each of the server's own streams, where nothing goes cold
SYSTEM_MARK_BYTES = 64 * KIB  # between two places where such a stream can be cut
SYSTEM_MARK_MS = 3_600_000  # or this long
COMMIT_COMMANDS_MAX = 1000  # in one batch: they are applied and answered in one go, about 15 ms
LARGE_BODY_BYTES = 128 * KIB  # split off the loop, and written to the log without being copied
MEDIUM_BODY_BYTES, MEDIUM_BODY_COMMAS = MIB, 32 * KIB  # split at once in a thread: 5 ms
LARGE_BODY_COMMAS = 8 * KIB  # a smaller body with more of them is large, too: two milliseconds
JSON_STEP_BYTES = 256 * KIB  # of a large body looked at in one go, a millisecond or two
JSON_TOKEN_BYTES_MAX = 2 * MIB  # of a number or white space, which cannot be looked at in parts
JSON_DEPTH_MAX = 1000  # brackets open at once; the decoder gives up a little before that
BLOCK_BYTES = MIB  # of many messages in one block of a log: what is copied when its front goes

LONG_POLL_SECONDS_MAX = 60.0  # a longer wait dies in proxies anyway
INSPECTION_WAIT_SECONDS = 3.0  # of a descriptor's long-poll that does not say; other servers' too
COUNTED_RUNS_AT_ONCE = 2048  # of one stream, in the catalog in one go: two milliseconds
COUNTED_STREAMS_KEPT = 1024  # whose runs need not be counted again until the catalog changes
LISTED_PLACE_MAX = 10_000  # names that a page of all streams may pass over by their number
TOP_STREAMS = 5  # in each list of those that take most
TOP_STREAMS_SAMPLED = 1024  # looked at to find them: a millisecond or two
PIPELINE_REQUESTS_MAX = (
    32  # requests of one connection parsed ahead of their turn; reading pauses beyond
)
ASKED_HEADERS_BYTES_MAX = 4 * KIB  # of header names that a preflight asks for and is told again
PIPELINE_BYTES_MAX = 256 * KIB  # of their bodies; one read of a socket brings as much
CHARGED_BODY_BYTES = 64 * KIB  # a body that comes in one piece and is no larger is not counted
SSE_BUFFER_BYTES = (
    256 * KIB
)  # unsent bytes after which a subscriber is fed from the log again, not from memory
SSE_PAGE_BYTES = MIB  # in one event: it is copied a few times
SSE_TURN_BYTES = 2 * MIB  # written to one subscriber before others get their turn
SSE_TURN_SUBSCRIBERS = 1000  # of one stream told in one go, 10 ms
BOOTSTRAP_PIECE_BYTES = 64 * KIB  # of a bootstrap's body made at a time; one message may be larger
BOOTSTRAP_TURN_PIECES = 16  # written before others get their turn: 5 ms of tiny messages
BOOTSTRAP_WINDOW_BYTES = MIB  # loaded at a time of what is cold: about a row group
PAGE_BYTES = 4 * MIB  # most in one live answer, and in one that asks for pages without a setting
SINGLE_ANSWER_BYTES = 512 * KIB  # a longer read is written in pieces, as the client takes them
ANSWER_PIECE_BYTES_MIN = 64 * KIB  # of a long answer; what a slow reader costs, however many
ANSWER_PIECE_BYTES_MAX = 4 * MIB  # while few do not read: large writes cost half of small ones
ANSWER_UNSENT_BYTES = 64 * MIB  # of pieces that wait for their readers; then pieces are smallest
ANSWER_TURN_BYTES = 4 * MIB  # written by all long answers before the loop serves others: 1-2 ms
ANSWER_FIRST_BYTES = 512 * KIB  # of a window before its head is sent, or made on the loop
ANSWER_WINDOW_BYTES = 2 * MIB  # loaded at a time of what is cold; one more is loaded ahead
ANSWER_WINDOWS_BYTES = 64 * MIB  # held by all long answers; who is slow loads its window anew
ANSWER_MESSAGE_OVERHEAD = 12  # bytes that a message costs in a window beside itself
ANSWER_LOADS_MAX = 32  # windows that long answers load at once; other cold reads come in between
COMPRESS_BYTES_MIN = KIB  # shorter answers fit into a packet or two as they are
COMPRESS_ON_LOOP_BYTES = 16 * KIB  # a tenth of a millisecond; more is compressed in a thread
COMPRESS_PIECE_BYTES = 256 * KIB  # of a body in memory, given to a thread at a time: 1-3 ms
COMPRESS_THREADS = 2  # as many as there are cores to spare; appends go first
COMPRESS_WAITING_MAX = 64  # answers and pieces that wait for a thread; then they go as they are
COMPRESSED_BODIES_MAX = 64  # at once, with 300 to 700 KiB for each compressor
SMALL_BLOCK_BYTES = (
    64 * KIB
)  # small appends are merged to blocks of this size; big ones stay as they came
SMALL_BLOCK_OVERHEAD = 128  # bytes of objects and lists that a block costs beside its content

SUBSCRIPTION_ID_BYTES_MAX = 256  # one segment of a URL that is sent with every wake
WORKER_NAME_BYTES_MAX = 256  # kept with the lease and shown to the worker that comes second
DESCRIPTION_BYTES_MAX = 4 * KIB  # kept for ever and in every checkpoint
CONTROL_BODY_BYTES_MAX = MIB  # requests about subscriptions: parsed whole, on the loop
WAKE_STREAMS_MAX = 1000  # streams in one wake, those with work first; the next wake has the rest
LISTED_STREAMS_MAX = 500  # streams in the answer to a GET of a subscription; each may be at rest
LISTED_NAMES_MAX = 2000  # names that are looked at to find them: 10 ms
SUBSCRIPTION_LINKS_MAX = (
    10_000  # streams that one subscription names itself; patterns name any number
)
NAMED_STREAMS_MAX = 500  # streams that one request about a subscription names
PATTERN_SEGMENTS_MAX = 32  # far more than names have, and matching pays for each
PATTERN_WEIGHT_MAX = 1000  # of all patterns that one new stream can meet: 20 ms at the very worst
ACCESS_KEYS_MAX = 10_000  # shown in one answer, and all of them in memory
ACCESS_SCOPES_MAX = 32  # of one key; a request that is refused is matched against all of them
ACCESS_NAME_BYTES_MAX = 256  # kept for as long as the key and shown in every list
ACCESS_GRANTS_CACHED = 4096  # keys in the forms in which clients send them: one each, usually
ACCESS_VERDICTS_CACHED = 16_384  # as many as paths of streams are remembered
LEASE_MS_MIN, LEASE_MS_MAX = 1000, 600_000  # the protocol's
WEBHOOKS_AT_ONCE = 1024  # each waits for a server that is not ours, with a socket and some 50 KiB
WEBHOOKS_DESCRIPTORS_SHARE = 4  # and one in so many of the files that the process may open
WEBHOOKS_BEGUN_AT_ONCE = 20  # their bodies are made in one go: a millisecond, unless they are long
WEBHOOKS_PER_RECEIVER = 8  # at once: keeps a quick receiver busy, and a dead one costs no more
WEBHOOK_CONNECT_SECONDS_MAX = 5.0  # to one of several addresses; then the next one is tried
WEBHOOK_HEADER_BYTES_MAX = 32 * KIB  # of an answer's head, as much as we take ourselves
WEBHOOK_SECONDS_MAX = 30.0  # one attempt, from the look-up of the name to the end of the answer
WEBHOOK_ANSWER_BYTES_MAX = 64 * KIB  # of a receiver's answer are read; it only has to say done
SUBSCRIPTION_LOOKS_AT_ONCE = 200  # subscriptions looked at in one go, a millisecond or two
SUBSCRIPTION_COMMANDS_MAX = 1000  # of the driver in the journal at once: a batch of its own
RUNAWAY_WAKES_PER_SECOND = 5  # one wake behind the other without a pause, over
RUNAWAY_SECONDS = 10.0  # this long: the receiver seems to feed the streams that wake it
RUNAWAY_WARNING_SECONDS = 60.0  # until the log names the same subscription again
RETRY_MS_MIN, RETRY_MS_MAX = 1000, 60_000  # the protocol's

TOUCH_KEYS_MAX = 1024  # that one wait names; what other servers of this route allow
TOUCH_EXACT_KEYS_MAX = 16  # of a wait that is matched by whole keys, theirs as well
TOUCH_TEMPLATES_MAX = 256  # that one request declares, theirs as well
TOUCH_TEMPLATE_FIELDS_MAX = 3  # theirs as well
TOUCH_WAIT_MS_MAX = 120_000  # theirs as well
TOUCH_CHANGED_FIELDS_MAX = 256  # of one row; a change of more counts as a change of everything
TOUCH_RECORD_BYTES_MAX = 256 * KIB  # of a record that is looked into; a longer one touches all
TOUCH_WORK_PER_TURN = 500  # records, keys and KiB looked at in one go, 2-3 ms
TOUCH_TIMERS_PER_TURN = 200  # flushes and ends of waits in one go, a few milliseconds
TOUCH_ANSWERS_PER_TURN = 250  # waits answered in one go, 4 ms
TOUCH_COALESCE_SECONDS = 0.01  # between two flushes of a stream on which clients wait
TOUCH_LAGGING_COALESCE_SECONDS = 0.05  # while its records are not all looked at
TOUCH_FILTER_CELLS_MIN = 256  # 1 KiB: what a stream costs on which little happens
TOUCH_FILTER_CELLS_MAX = 256 * KIB  # 1 MiB: 25,000 keys touched since a cursor, 1 in 100 false
TOUCH_FILTERS_BYTES_MAX = 64 * MIB  # of all streams; beyond it they stay small, and tell more
TOUCH_EXACT_SECONDS = 15.0  # for which whole keys are kept, where clients ask for exact waits
TOUCH_EXACT_HISTORY_KEYS_MAX = 64 * KIB  # of one stream, some 5 MiB; older ones go first
TOUCH_RETIRED_KEPT = 4096  # ids of a stream's retired templates; then every new one may be one
TOUCH_IDLE_SECONDS = 600.0  # without a request, a wait or a template: the stream is forgotten

ROW_GROUP_BYTES = MIB  # of wire bytes of one stream; longer ones compress no better
SHARED_ROW_GROUP_BYTES = 256 * KIB  # of many streams; what a small stream costs to fetch and decode
ROW_GROUP_ROWS_MAX = 64 * KIB  # a decoded row costs 40 bytes beside its message, however short
SHARED_ROW_GROUP_ROWS_MAX = 16 * KIB
KEY_FILTER_BYTES_MAX = 16 * KIB  # of one run: as many bits as 10,000 keys in a row group want
COLD_FETCH_BYTES_MAX = 8 * MIB  # one range request for neighbouring row groups; then the next
FOOTER_CACHE_BYTES = 16 * MIB  # parsed footers: 7 KiB for each row group, a few GiB of history
FOOTER_MEMORY_FACTOR = 14  # bytes of a parsed footer for each byte of it in the object, measured

FLUSH_THREADS = 2  # segments encoded and uploaded at once; more would only fight for the cores
FLUSH_GATHER_STREAMS = 100  # of a shard looked at in one go on the loop, about half a millisecond
SEGMENT_FLUSH_BYTES_MAX = 32 * MIB  # content in one segment; a shard with more gets another one
SEGMENT_STREAMS_MAX = 5000  # in one flush: publishing their runs takes a few milliseconds at most
CAPTURE_STREAMS = 250  # taken for a checkpoint in one go on the loop, about half a millisecond
CHECKPOINT_FLUSH_BYTES = MIB  # a shard with less hot content puts it into the checkpoint's file
EVICTIONS_AT_ONCE = 500  # streams put out of memory in one go, well under a millisecond
DUE_STREAMS_AT_ONCE = 200  # streams at rest that are ended in one go, 15 ms
EXPIRIES_AT_ONCE = 250  # streams in memory whose end is submitted in one go: to apply takes 10 ms
CATALOG_READ_CACHE_BYTES = 512 * KIB  # of pages of each of its files, for reads on the loop
CATALOG_MERGE_CACHE_BYTES = 16 * MIB  # of pages of the one file that is merged, while it is
CATALOG_NUDGE_SECONDS = 60.0  # how often garbage may ask for a newer copy while nothing happens
CATALOG_UPLOAD_SHARE = 20  # an upload that took a second leaves nineteen free: copies cost CPU
GARBAGE_GRACE_SECONDS = 60.0  # far longer than a reader takes from its plan to its last object
GARBAGE_RETRY_SECONDS = 60.0
GARBAGE_GRACE_FULL_SECONDS = 5.0  # while the disk is full: slower readers plan again
FULL_DISK_LOOK_SECONDS = 1.0  # whether the disk is full, and has room again
FULL_DISK_LOG_BYTES = 256 * 1024  # of a log file while the disk is full: only small commands then
GARBAGE_LISTED_MAX = 1000  # names in an answer
UNUSED_BLOBS_MAX = 100_000  # remembered until they may go; more are found by listing the store
ORPHAN_AGE_SECONDS = 3600.0  # far longer than from an upload to its reference
ORPHAN_PAGE = 1000  # objects listed at once
ORPHANS_PER_TURN = 25  # looked up in the catalog on the loop in one go, about a millisecond
WINDOW_THREADS = 3  # windows put together at once; the object store's answers are waited for here
WINDOW_FETCH_THREADS = 6  # segments asked for at once, by all readers together
WINDOW_LOADS_MAX = 256  # cold reads under way: a second or two of work for a store that is near
WINDOW_RUNS_MAX = 256  # in one window, each perhaps an object of its own; then the page is shorter
PREPARE_STEPS_PER_TURN = 64  # look-ups for a command before the loop gets its turn, a millisecond
PLAN_STEPS_PER_TURN = 16  # look-ups in the catalog before the event loop gets its turn again
LOOKUP_RUNS_PER_TURN = 64  # key filters read and asked on the loop in one go, a MiB at most
LOOKUP_RUNS_MAX = 4096  # ruled out or read for one page of a key: a GiB of a stream, some 20 ms
LOOKUP_LOADS_AT_ONCE = 16  # row groups that may hold a key, fetched and decoded together
LOOKUP_LOADS_MAX = 64  # of them for one page
LOOKUP_BYTES_MAX = 32 * MIB  # of content read for one page, or one row group that is larger
LOOKUP_MESSAGES_PER_TURN = 16 * KIB  # in memory, looked at in one go: half a millisecond
LOOKUP_MESSAGES_MAX = 512 * KIB  # in memory, looked at for one page
READ_AHEADS_MAX = 2  # at once: half the threads stay free for those who wait
READ_AHEAD_BYTES = 4 * MIB  # behind a window that was read in sequence: about one page
READ_AHEAD_STREAMS_MAX = 1024  # streams whose last window is remembered, to know a sequence by
TRIMS_AT_ONCE = 200  # streams whose old content is given up in one go on the loop
REPLACED_SEGMENTS_KEPT = 8192  # names of those that swaps took: those of 32 of the largest jobs
CHECKPOINT_SECONDS_MAX = 60.0  # between two checkpoints when anything changed, however little
PUBLISHED_DROPS_AT_ONCE = 200  # of published runs in one go on the loop, about half a millisecond
PUBLISHED_RUN_OVERHEAD = 256  # bytes of objects that a published run costs beside its content
APPEND_WAIT_SECONDS = 2.0  # an append waits for room in memory; a flush takes a fraction
APPENDS_WAITING_MAX = 10_000  # at once; their bodies are bounded as all bodies are
UNUSED_MEMORY_BYTES = 16 * MIB  # growth of the process after which freed memory is given back
DECODES_MAX = 2  # row groups decoded at once: each takes several times its size for a moment
PUBLISHED_MEMORY_FACTOR = 1.5  # memory that a byte takes, holes in the heap too
SHARDS_DEFAULT = 16  # parts of a new catalog: each is merged alone, and has enough to do it for

SCHEMA_UPDATE_BYTES_MAX = 256 * KIB  # of one request about schema or profile, parsed on the loop
RULES_BYTES_MAX = MIB  # of all schemas, lenses and configs of a stream: every checkpoint has them
SCHEMA_VERSIONS_MAX = 1000  # an old entry goes through as many lenses when it is read
DOCUMENT_DEPTH_MAX = 100  # of schemas, lenses, profiles: code that walks them may call itself
DOCUMENT_NODES_MAX = 50_000  # values in one of them, and places that a proof looks at
SUBSCHEMAS_MAX = 5000  # of one schema: compiled on the loop in 100 ms at the very worst
PATTERNS_MAX = 100  # regular expressions of one schema, each up to
PATTERN_KIB_MAX = 256  # KiB as a program; a hostile one takes 140 ns for each of them and character
VALIDATION_WORK_MAX = 16 * MIB  # checks of one entry, or its characters times KiB: 2 s at worst
VALIDATION_NODES_FREE = 16  # checks on one value that are not counted: any large entry costs that
PROBLEMS_LISTED_MAX = 5000  # checks up to which all problems are listed: 10 µs each; else the first
PROBLEM_TEXT_MAX = 1000  # characters in the answer to an entry that is refused
LENS_OPS_MAX = 1000  # of one lens, inner ones too
PROOF_STEPS_MAX = 50_000  # of comparing two schemas: half a second at the very worst
PROMOTION_BYTES_MAX = 64 * MIB  # that lenses may add to one entry; each operation counts as
PROMOTION_STEP_BYTES = 16  # bytes, so that the time is bounded, too: a few seconds at worst
SCHEMA_CACHE_BYTES = 4 * MIB  # of schema text whose validators are kept: 40 times that in memory
LENS_CACHE_BYTES = 4 * MIB  # of lens text that is kept parsed
SEARCH_FIELDS_MAX = 256  # of one stream; every record is looked at for each that a query names
SEARCH_ALIASES_MAX = 256
SEARCH_BINDINGS_MAX = 256  # of one field, one for each version that moved it
SEARCH_NAME_CHARACTERS_MAX = 64  # of a field, alias, rollup or measure; they stand in every answer
SEARCH_VALUES_MAX = (
    1024  # of one field in one record; what an array has beyond them is not looked at
)
ROLLUPS_MAX = 32  # of one stream, each kept up to date for every record
ROLLUP_DIMENSIONS_MAX = 16
ROLLUP_INTERVALS_MAX = 16
ROLLUP_MEASURES_MAX = 32
QUERY_CHARACTERS_MAX = 4096  # of a filter or a search; a URL carries little more
QUERY_CLAUSES_MAX = 128  # each costs every record that is scanned up to 20 µs
QUERY_DEPTH_MAX = 32  # brackets open at once: the parser goes down with them
SEARCHES_CACHED = 64  # search configs that are kept parsed: some KiB each, a few MiB at worst
PROFILES_CACHED = 256  # profiles that are kept parsed, a few KiB each
PROFILE_LIST_MAX = 64  # entries in one list of a profile's settings
PROFILE_TEXT_CHARACTERS_MAX = 256  # of one of them
EVLOG_DEPTH_MAX = 256  # levels of a record's context: far below what the encoder can print
EVLOG_REDACTED_CHARACTERS_MAX = 64 * KIB  # of paths listed: a short record can hold very many
PROMOTION_STEP_BYTES = 32  # bytes, so that the time is bounded, too: a few seconds at worst
SCHEMA_CACHE_BYTES = 64 * MIB  # of compiled schemas in memory: some 1300 of a KiB of JSON
LENS_CACHE_BYTES = 32 * MIB  # of parsed lenses in memory: a stream has up to 20 MiB of them

// The same collections in a stream that checks every change and tells who waits for it.
globalThis.profile = { kind: "state-protocol", touch: { enabled: true } }
await import("./stream_db.mjs")

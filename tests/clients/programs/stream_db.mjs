// StreamDB: collections kept in a stream. One writes, one follows, one loads it all at the end.
import { DurableStream } from "@durable-streams/client"
import { createStateSchema } from "@durable-streams/state"
import { createStreamDB } from "@durable-streams/state/db"
import { mark, pause, tell } from "./telling.mjs"

const server = process.argv[2]
const TASKS = 120
const anything = { "~standard": { version: 1, vendor: "tests", validate: (value) => ({ value }) } }
const state = createStateSchema({
  tasks: { schema: anything, type: "task", primaryKey: "id" },
  notes: { schema: anything, type: "note", primaryKey: "id" },
})
const profile = globalThis.profile // set by the program that imports this one
const board = profile ? profile.kind : "board"
const options = { url: `${server}/v1/stream/state/${board}`, contentType: "application/json" }
await DurableStream.create(options)
if (profile) {
  const body = JSON.stringify({ profile })
  const reply = await fetch(`${options.url}/_profile`, { method: "POST", body })
  if (!reply.ok) throw new Error(await reply.text())
}

/** A StreamDB stops for good when its connection breaks: it is opened again and loads anew. */
class Follower {
  opened = 0

  constructor(live) {
    this.live = live
  }

  async open() {
    this.opened += 1
    const db = createStreamDB({ streamOptions: options, state, live: this.live })
    await db.preload()
    this.db?.close()
    this.db = db
  }

  async waitFor(txid) {
    for (;;) {
      try {
        await this.db.utils.awaitTxId(txid, 3000)
        return
      } catch {
        await this.open()
      }
    }
  }

  content() {
    const { tasks, notes } = this.db.collections
    const sorted = (rows) => rows.sort((a, b) => (a.id < b.id ? -1 : 1))
    return {
      tasks: sorted(tasks.toArray.map(({ id, done }) => ({ id, done }))),
      notes: sorted(notes.toArray.map(({ id, text }) => ({ id, text }))),
    }
  }
}

const writer = new DurableStream(options)
const followers = [new Follower("sse"), new Follower("long-poll")]
for (const follower of followers) await follower.open()
const expected = { tasks: [], notes: [] }
const write = (event) => writer.append(JSON.stringify(event))
for (let n = 0; n < TASKS; n += 1) {
  const id = `t${String(n).padStart(4, "0")}`
  await write(state.tasks.upsert({ value: { id, done: false } }))
  if (n % 3 === 0) await write(state.tasks.upsert({ value: { id, done: true } }))
  if (n % 5 === 0) await write(state.tasks.delete({ key: id }))
  else expected.tasks.push({ id, done: n % 3 === 0 })
  if (n % 60 === 30) mark()
  await pause(5)
}
const last = crypto.randomUUID()
const note = { id: "n1", text: "the end" }
await write(state.notes.upsert({ value: note, headers: { txid: last } }))
expected.notes.push(note)
for (const follower of followers) await follower.waitFor(last)
const late = new Follower(false)
await late.open()
tell({
  expected,
  followers: [...followers, late].map((f) => ({ opened: f.opened, content: f.content() })),
})

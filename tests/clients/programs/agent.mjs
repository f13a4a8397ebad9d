// An agent's run: a producer that may be retried, readers beside it, a fork, a close.
import { DurableStream, IdempotentProducer, stream } from "@durable-streams/client"
import { follow, patientFetch } from "./patience.mjs"
import { mark, pause, tell } from "./telling.mjs"

const server = process.argv[2]
const EVENTS = 400
const url = `${server}/v1/stream/agents/run-1`

const run = await DurableStream.create({ url, contentType: "application/json" })
const errors = []
const producer = new IdempotentProducer(run, "agent-1", {
  autoClaim: true,
  fetch: patientFetch,
  onError: (error) => errors.push(String(error)),
})

async function read(live) {
  const seen = []
  const { opened } = await follow({ url, live }, (items) => seen.push(...items.map(({ n }) => n)))
  return { seen, opened }
}

/** Reads a few at a time and goes on from the offset it kept, as a client that comes and goes. */
async function readInPieces() {
  const seen = []
  let offset = "-1"
  for (let closed = false; !closed; ) {
    try {
      const response = await stream({ url, offset, live: false })
      for (const { n } of await response.json()) seen.push(n)
      offset = response.offset
      closed = response.streamClosed
    } catch (error) {
      if (error.status >= 400 && error.status < 500) throw error
    }
    await pause(30)
  }
  return { seen }
}

const readers = Promise.all([read("sse"), read("long-poll"), read(true), readInPieces()])
let fork
for (let n = 0; n < EVENTS; n += 1) {
  producer.append(JSON.stringify({ n, text: "ünï ".repeat(n % 7) }))
  if (n % 150 === 100) mark() // not where it forks: that append may be stored twice when retried
  if (n === EVENTS / 2) {
    await producer.flush()
    fork = await DurableStream.create({
      url: `${url}-fork`,
      contentType: "application/json",
      headers: { "Stream-Forked-From": "/v1/stream/agents/run-1" },
    })
    await fork.append(JSON.stringify({ n: "forked" }))
  }
  await pause(4)
}
await producer.flush()
const { finalOffset } = await producer.close(JSON.stringify({ n: "done" }))
const [sse, longPoll, auto, pieces] = await readers
const forked = await (await fork.stream({ live: false })).json()
const head = await run.head()
let refused
try {
  await run.append(JSON.stringify({ n: "late" }))
} catch (error) {
  refused = error.status
}
tell({
  ...{ events: EVENTS, errors, finalOffset, head, refused },
  readers: { sse, longPoll, auto, pieces },
  forked: forked.map(({ n }) => n),
})

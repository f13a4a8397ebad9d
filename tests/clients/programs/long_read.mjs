// `live: false`: one answer, read to its end. All of it has to be there, or an error.
import { createHash } from "node:crypto"
import { DurableStream, stream } from "@durable-streams/client"
import { mark, pause, tell } from "./telling.mjs"

const server = process.argv[2]
const MIB = 1024 * 1024
const CHUNKS = 50

const bytesUrl = `${server}/v1/stream/long/bytes`
const sent = createHash("sha256")
const bytes = await DurableStream.create({ url: bytesUrl, contentType: "application/octet-stream" })
for (let n = 0; n < CHUNKS; n += 1) {
  const chunk = Buffer.alloc(MIB, `chunk ${n} `)
  sent.update(chunk)
  await bytes.append(chunk)
}

const jsonUrl = `${server}/v1/stream/long/json`
const json = await DurableStream.create({ url: jsonUrl, contentType: "application/json" })
for (let n = 0; n < CHUNKS; n += 1) {
  const batch = Array.from({ length: 1000 }, (_, i) => ({ n: n * 1000 + i, pad: "x".repeat(1000) }))
  const body = JSON.stringify(batch)
  const headers = { "content-type": "application/json" }
  const answer = await fetch(jsonUrl, { method: "POST", headers, body })
  if (!answer.ok) throw new Error(`append: ${answer.status}`)
}

async function readBytes() {
  const body = await (await stream({ url: bytesUrl, live: false })).body()
  return { size: body.length, hash: createHash("sha256").update(body).digest("hex") }
}

async function readJson() {
  const items = await (await stream({ url: jsonUrl, live: false })).json()
  return { count: items.length, inOrder: items.every(({ n }, i) => n === i) }
}

/** Reads slowly while the server dies: what is missing has to be noticed. */
async function readSlowly() {
  const reader = (await stream({ url: bytesUrl, live: false })).bodyStream().getReader()
  let size = 0
  let marked = false
  try {
    for (;;) {
      const { done, value } = await reader.read()
      if (done) return { size, error: null }
      size += value.length
      if (!marked) {
        marked = true
        mark()
        await pause(400)
      }
    }
  } catch (error) {
    return { size, error: String(error) }
  }
}

const slowly = await readSlowly()
tell({
  ...{ slowly, bytes: await readBytes(), json: await readJson() },
  sent: { size: CHUNKS * MIB, hash: sent.digest("hex"), count: CHUNKS * 1000 },
})

// Two Yjs documents and the official Yjs server on top of ours; compaction goes on meanwhile.
import * as Y from "yjs"
import * as encoding from "lib0/encoding"
import { YjsProvider } from "@durable-streams/y-durable-streams"
import { YjsServer } from "@durable-streams/y-durable-streams/server"
import { mark, pause, tell, until } from "./telling.mjs"

const [server, weather] = process.argv.slice(2) // the server's address; "stormy" when it dies at times
const ROUNDS = 60
const yjs = new YjsServer({ port: 0, dsServerUrl: server, compactionThreshold: 1500 })
await yjs.start()
const baseUrl = `${yjs.url}/v1/yjs/service`
const docUrl = `${baseUrl}/docs/shared/notes`

function open() {
  const doc = new Y.Doc()
  const provider = new YjsProvider({ doc, baseUrl, docId: "shared/notes" })
  keepConnected(provider)
  return { doc, provider, text: doc.getText("text"), map: doc.getMap("map") }
}

/** A provider whose server was away stays disconnected until somebody connects it again. */
function keepConnected(provider) {
  provider.on("error", () => {})
  setInterval(() => {
    if (!provider.connected && !provider.connecting) provider.connect().catch(() => {})
  }, 300)
}

/** Sends a whole document, because a provider drops what is written while it is not connected.
 * What the server holds already changes nothing. */
async function resend(doc) {
  const frame = encoding.createEncoder()
  encoding.writeVarUint8Array(frame, Y.encodeStateAsUpdate(doc))
  const headers = { "content-type": "application/octet-stream" }
  const body = encoding.toUint8Array(frame)
  const answer = await fetch(docUrl, { method: "POST", headers, body })
  if (!answer.ok) throw new Error(`resend: ${answer.status}`)
}

const isSame = (one, other) =>
  Buffer.compare(Y.encodeStateAsUpdate(one.doc), Y.encodeStateAsUpdate(other.doc)) === 0
const snapshots = new Set()
async function lookForSnapshot() {
  const answer = await fetch(`${docUrl}?offset=snapshot`, { redirect: "manual" })
  const place = answer.headers.get("location")
  if (place?.includes("_snapshot")) snapshots.add(new URL(place, docUrl).searchParams.get("offset"))
}

const writers = [open(), open()]
for (const { provider } of writers) await until(() => provider.synced, "synced")
for (let round = 0; round < ROUNDS; round += 1) {
  for (const [who, { text, map }] of writers.entries()) {
    text.insert(Math.floor(text.length / 2), `${who}:${round} `.repeat(4))
    map.set(`${who}-${round}`, round)
  }
  if (round % 25 === 10) mark()
  await lookForSnapshot().catch(() => {})
  await pause(30)
}
const [one, other] = writers
let resent = 0
if (weather === "stormy") {
  await until(async () => {
    for (const { doc } of writers) await resend(doc).then(() => (resent += 1), () => {})
    await pause(300)
    return isSame(one, other)
  }, "the documents are the same")
} else {
  await until(() => isSame(one, other), "the documents are the same")
}
const late = open()
await until(() => isSame(one, late), "a late document is the same")
await lookForSnapshot()
tell({
  ...{ rounds: ROUNDS, resent, snapshots: [...snapshots], keys: late.map.size },
  text: late.text.length,
  words: late.text.toString().split(" ").length - 1,
})

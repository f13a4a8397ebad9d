// Starts the protocol authors' Node reference server for `python -m bench`.
// Usage: node reference_server.mjs PORT [DATA_DIR]; without a directory it keeps streams in memory.
import { createRequire } from "node:module"
import { pathToFileURL } from "node:url"

const packages = new URL("../tests/conformance/official/package.json", import.meta.url)
const entry = createRequire(packages).resolve("@durable-streams/server")
const { DurableStreamTestServer } = await import(pathToFileURL(entry).href)

const [port, dataDir] = process.argv.slice(2)
const server = new DurableStreamTestServer({ host: "127.0.0.1", port: Number(port), dataDir })
await server.start()

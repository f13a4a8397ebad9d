// The official suite has to be called from a file outside node_modules: vitest looks for no tests in there.
import { runConformanceTests } from "@durable-streams/server-conformance-tests"

const baseUrl = process.env.CONFORMANCE_TEST_URL
if (!baseUrl) throw new Error("CONFORMANCE_TEST_URL must hold the address of the server under test")

runConformanceTests({ baseUrl, subscriptions: true })

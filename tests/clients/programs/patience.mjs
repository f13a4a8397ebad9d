// What a user of the official TypeScript client adds so that a restart of the server is no event.
// docs/clients.md shows these two functions.
import { stream } from "@durable-streams/client"

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms))

/** For IdempotentProducer's `fetch`: it sends each batch once and gives it up on any error. */
export async function patientFetch(...request) {
  for (let ms = 50; ; ms = Math.min(ms * 2, 2000)) {
    try {
      const response = await fetch(...request)
      if (response.status !== 429 && response.status !== 503) return response
    } catch (error) {
      if (error.name === "AbortError") throw error
    }
    await pause(ms)
  }
}

/** Follows a JSON stream to its end: a reader whose connection broke is opened again where it was. */
export async function follow(options, onBatch) {
  let offset = options.offset ?? "-1"
  let opened = 0
  for (let closed = false; !closed; ) {
    opened += 1
    try {
      const response = await stream({ ...options, offset })
      response.subscribeJson(async (batch) => {
        await onBatch(batch.items)
        offset = batch.offset
        closed ||= batch.streamClosed
      })
      await response.closed
      closed ||= response.streamClosed
    } catch (error) {
      if (error.status >= 400 && error.status < 500) throw error
      await pause(100)
    }
  }
  return { offset, opened }
}

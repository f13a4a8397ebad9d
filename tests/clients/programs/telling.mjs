// How a program and the test that runs it speak: one JSON value per line of standard output.

export const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms))

/** "Now would be a bad moment for the server to die." */
export const mark = () => console.log(JSON.stringify({ mark: true }))

/** What came of it. The program is over then, whatever timers and sockets are left. */
export function tell(result) {
  process.stdout.write(JSON.stringify({ result }) + "\n", () => process.exit(0))
}

/** Looks again and again until `isTrue`, for at most `seconds`. */
export async function until(isTrue, what, seconds = 60) {
  for (const end = Date.now() + seconds * 1000; !(await isTrue()); await pause(20)) {
    if (Date.now() > end) throw new Error(`not within ${seconds} s: ${what}`)
  }
}

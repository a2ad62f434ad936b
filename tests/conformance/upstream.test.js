// The upstream suite against the server at HOLDFAST_URL. Started by test_upstream_server_suite.py.
import { runConformanceTests } from "@durable-streams/server-conformance-tests"

const baseUrl = process.env.HOLDFAST_URL
if (!baseUrl) throw new Error("HOLDFAST_URL is not set: the address of the server under test")

const token = process.env.HOLDFAST_TOKEN
if (token) {
  // The suite knows nothing of access control: every request that brings no token gets ours.
  const plainFetch = globalThis.fetch
  globalThis.fetch = (input, init) => {
    const request = new Request(input, init)
    if (request.headers.has("authorization")) return plainFetch(input, init)
    const headers = new Headers(init?.headers ?? request.headers)
    headers.set("authorization", `Bearer ${token}`)
    return plainFetch(input, { ...init, headers })
  }
}

runConformanceTests({ baseUrl, longPollTimeoutMs: 500, subscriptions: true })

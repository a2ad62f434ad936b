// The upstream suite against the server at HOLDFAST_URL. Started by test_upstream_server_suite.py.
import { runConformanceTests } from "@durable-streams/server-conformance-tests"

const baseUrl = process.env.HOLDFAST_URL
if (!baseUrl) throw new Error("HOLDFAST_URL is not set: the address of the server under test")

runConformanceTests({ baseUrl, longPollTimeoutMs: 500, subscriptions: true })

// Starts the reference server in memory on a free port, and says where it listens.
import { DurableStreamTestServer } from "@durable-streams/server"

const server = new DurableStreamTestServer({ port: 0, host: "127.0.0.1", longPollTimeout: 500 })
console.log(await server.start())
process.on("SIGTERM", () => process.exit(0))

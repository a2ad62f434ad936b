// Starts the reference server: `node server.mjs PORT [DATA_DIR]`; without DATA_DIR it keeps streams in memory.
import { DurableStreamTestServer, FileBackedStreamStore } from "@durable-streams/server"

// The store's own default of 100 open files makes it refuse about every second append over 1,000
// streams (an evicted handle is answered 404), and the server has no option for it.
const FILE_HANDLES_MAX = 4096

const [port, dataDir] = process.argv.slice(2)
const server = new DurableStreamTestServer({ port: Number(port), host: "127.0.0.1" })
if (dataDir) {
  server.store = new FileBackedStreamStore({ dataDir, maxFileHandles: FILE_HANDLES_MAX })
}
await server.start()
process.on("SIGTERM", () => process.exit(0))

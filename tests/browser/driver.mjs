// A Chromium for tests in another language: each line on stdin is a call, each on stdout its result.
//
//   {"page": null, "method": "open", "args": [{"context": null}]}  →  {"result": 0}
//   {"page": 0, "method": "click", "args": ["#send"]}              →  {"result": null}
//
// The methods of a page are playwright's own. Results that are no JSON are left out.

import { createInterface } from "node:readline";
import { chromium } from "playwright-core";

const browser = await chromium.launch({
  executablePath: process.argv[2],
  args: ["--no-sandbox", "--disable-dev-shm-usage"],
});
const pages = [];
const errors = [];

const own = {
  // A page in a context of its own, or in that of another page, as a second tab would be.
  async open(besides) {
    const context = besides === null ? await browser.newContext() : pages[besides].context();
    const page = await context.newPage();
    const at = pages.push(page) - 1;
    errors[at] = [];
    page.on("pageerror", (error) => errors[at].push(String(error)));
    return at;
  },
  async closeContext(at) {
    await pages[at].context().close();
  },
  async errorsOf(at) {
    return errors[at];
  },
};

async function call({ page, method, args }) {
  try {
    const result = page === null ? await own[method](...args) : await pages[page][method](...args);
    return { result: isPlain(result) ? result : null };
  } catch (error) {
    return { error: String(error) };
  }
}

function isPlain(value) {
  return value !== undefined && (typeof value !== "object" || value === null ||
    [Object.prototype, Array.prototype].includes(Object.getPrototypeOf(value)));
}

console.log(JSON.stringify({ result: browser.version() }));
for await (const line of createInterface({ input: process.stdin })) {
  console.log(JSON.stringify(await call(JSON.parse(line))));
}
await browser.close();

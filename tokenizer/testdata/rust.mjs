// rust.mjs measures the Rust tokenizer's Node binding on the mixed corpus, in CPU time of one thread. Run it in the
// cache folder that golden.sh prepares: `node rust.mjs folder-of-model`. It prints two figures: the rate of the best
// of three rounds in millions of tokens per second, and the load time in milliseconds.
import fs from 'node:fs'
import path from 'node:path'
import { createRequire } from 'node:module'
const { Tokenizer } = createRequire(path.join(process.cwd(), 'x.js'))('tokenizers')
const cpu = () => { const u = process.cpuUsage(); return (u.user + u.system) / 1e6 }
const docs = JSON.parse(fs.readFileSync('corpus/mixed.json', 'utf8'))
let began = cpu()
const t = Tokenizer.fromFile(path.join(process.argv[2], 'tokenizer.json'))
const load = cpu() - began
let best = 0
for (let round = 0; round < 3; round++) {
  let tokens = 0
  began = cpu()
  for (const d of docs) tokens += (await t.encode(d, null, { addSpecialTokens: false })).getLength()
  best = Math.max(best, tokens / (cpu() - began) / 1e6)
}
console.log(`${best.toFixed(2)} Mtok/s, load ${(load * 1000).toFixed(0)} ms`)

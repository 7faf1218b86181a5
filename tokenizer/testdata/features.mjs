// This file has small tokenizers, one for each component and option. Their model is a WordPiece of single characters:
// "c" begins a word and "##c" continues a word, so every wrong split changes the ids.
import fs from 'node:fs'

const ranges = [[0x20, 0x7e], [0xa0, 0x17f], [0x300, 0x320], [0x370, 0x3ff], [0x400, 0x45f], [0x5d0, 0x5ea], [0x600, 0x66f], [0x905, 0x970],
  [0xe01, 0xe5b], [0x1100, 0x1112], [0x2000, 0x206f], [0x2460, 0x2480], [0x2581, 0x2581], [0x3000, 0x30ff], [0x4e00, 0x4e80], [0xac00, 0xac40],
  [0xff01, 0xff5e], [0x1f600, 0x1f64f], [0x09, 0x0d]]

export function wordPieceVocab() {
  const vocab = { '[UNK]': 0, '[CLS]': 1, '[SEP]': 2 }
  let id = 3
  for (const [lo, hi] of ranges) {
    for (let c = lo; c <= hi; c++) {
      vocab[String.fromCodePoint(c)] = id++
      vocab['##' + String.fromCodePoint(c)] = id++
    }
  }
  return vocab
}

const split = (pattern, behavior, invert = false) => ({ type: 'Split', pattern, behavior, invert })
const regex = (r) => ({ Regex: r })
const text = (s) => ({ String: s })
const seq = (key, type, list) => ({ type: 'Sequence', [key]: list })
const pres = (...list) => seq('pretokenizers', 'Sequence', list)
const norms = (...list) => seq('normalizers', 'Sequence', list)
const metaspace = (prepend_scheme, split = true) => ({ type: 'Metaspace', replacement: '▁', prepend_scheme, split })
const spaces = { type: 'WhitespaceSplit' }

// name → {normalizer, pre_tokenizer, added_tokens}
export function features(charsmap) {
  const all = {}
  for (const behavior of ['Removed', 'Isolated', 'MergedWithPrevious', 'MergedWithNext', 'Contiguous']) {
    for (const invert of [false, true]) {
      all[`split-${behavior}-${invert}`] = { pre_tokenizer: split(regex('[-a-c ]'), behavior, invert) }
    }
    all[`split-text-${behavior}`] = { pre_tokenizer: split(text('the'), behavior) }
    all[`punctuation-${behavior}`] = { pre_tokenizer: { type: 'Punctuation', behavior } }
  }
  for (const [name, r] of Object.entries({
    lazy: 'a.*?b', bloom: ' ?[^(\\s|[.,!?…。，、।۔،])]+', possessive: '\\p{N}++| ?\\p{L}++|\\s++', kimi: '[\\p{L}&&[^\\p{Han}]]+|[\\p{Han}]+|.', digits3: '\\d{1,3}(?=.)',
    word: '\\w+|[^\\w\\s]+', end: '\\s+$|\\s', lookahead3: '\\p{N}{1,3}(?=(?:\\p{N}{3})*(?:\\P{N}|$))', fold: '(?i:sa|k|x[ey])', props: '\\p{Lu}\\p{Ll}*|\\p{^L}',
    star: 'x*', hex: '[\\x41-\\x{5A}]+|\\u0430+', falcon: '[0-9][0-9][0-9]', lookbehind: '(?<=a)b+',
  })) all[`regex-${name}`] = { pre_tokenizer: split(regex(r), 'Isolated') }
  all['digits'] = { pre_tokenizer: { type: 'Digits', individual_digits: false } }
  all['digits-each'] = { pre_tokenizer: { type: 'Digits', individual_digits: true } }
  all['whitespace'] = { pre_tokenizer: { type: 'Whitespace' } }
  all['whitespace-split'] = { pre_tokenizer: spaces }
  all['bert'] = { pre_tokenizer: { type: 'BertPreTokenizer' } }
  all['delimiter'] = { pre_tokenizer: { type: 'CharDelimiterSplit', delimiter: 'e' } }
  all['fixed'] = { pre_tokenizer: { type: 'FixedLength', length: 3 } }
  all['bytelevel-inside'] = { pre_tokenizer: pres({ type: 'ByteLevel', add_prefix_space: true, trim_offsets: true, use_regex: true }, split(text('Ġ'), 'MergedWithNext')) }
  for (const s of ['always', 'first', 'never']) {
    all[`metaspace-${s}`] = { pre_tokenizer: metaspace(s) }
    all[`metaspace-${s}-whole`] = { pre_tokenizer: metaspace(s, false) }
    all[`metaspace-${s}-added`] = { pre_tokenizer: pres(split(text('.'), 'Isolated'), metaspace(s)), normalizer: { type: 'Strip', strip_left: true, strip_right: true },
      added_tokens: [{ content: 'the', special: false, normalized: false }, { content: '::', special: true, normalized: false }] }
  }
  for (const type of ['NFC', 'NFD', 'NFKC', 'NFKD', 'Lowercase', 'StripAccents', 'Nmt']) all[type] = { normalizer: { type }, pre_tokenizer: spaces }
  all['nfd-strip'] = { normalizer: norms({ type: 'NFD' }, { type: 'StripAccents' }), pre_tokenizer: spaces }
  all['strip-left'] = { normalizer: { type: 'Strip', strip_left: true, strip_right: false }, pre_tokenizer: metaspace('first') }
  all['strip-right'] = { normalizer: { type: 'Strip', strip_left: false, strip_right: true } }
  all['replace'] = { normalizer: norms({ type: 'Replace', pattern: regex('[aeiou]+'), content: '_' }, { type: 'Replace', pattern: text('  '), content: ' ' }, { type: 'Prepend', prepend: '>' }) }
  for (const lowercase of [true, false]) for (const strip_accents of [true, false, null]) for (const clean_text of [true, false]) {
    all[`bert-${lowercase}-${strip_accents}-${clean_text}`] = { normalizer: { type: 'BertNormalizer', clean_text, handle_chinese_chars: clean_text, strip_accents, lowercase }, pre_tokenizer: { type: 'BertPreTokenizer' } }
  }
  if (charsmap) all['charsmap'] = { normalizer: { type: 'Precompiled', precompiled_charsmap: charsmap }, pre_tokenizer: metaspace('first') }
  const flags = (o) => ({ single_word: false, lstrip: false, rstrip: false, normalized: false, special: false, ...o })
  all['added'] = { normalizer: { type: 'Lowercase' }, pre_tokenizer: spaces, added_tokens: [
    flags({ content: 'the', single_word: true }), flags({ content: 'and', lstrip: true }), flags({ content: '<x>', rstrip: true, special: true }),
    flags({ content: '<x><y>', lstrip: true, rstrip: true, special: true }), flags({ content: 'Of', normalized: true }), flags({ content: 'off', normalized: true, single_word: true }),
    flags({ content: '\n', special: true }), flags({ content: '  ', special: false }), flags({ content: 'é', normalized: true }) ] }
  return all
}

export function writeFeature(path, spec) {
  const vocab = wordPieceVocab()
  let next = Object.keys(vocab).length
  const added = (spec.added_tokens ?? []).map((t) => ({ single_word: false, lstrip: false, rstrip: false, ...t })).map((t) => ({ id: vocab[t.content] ?? next++, ...t }))
  fs.writeFileSync(path, JSON.stringify({ version: '1.0', truncation: null, padding: null, added_tokens: added, normalizer: spec.normalizer ?? null,
    pre_tokenizer: spec.pre_tokenizer ?? null, post_processor: { type: 'BertProcessing', sep: ['[SEP]', 2], cls: ['[CLS]', 1] },
    decoder: { type: 'WordPiece', prefix: '##', cleanup: true },
    model: { type: 'WordPiece', unk_token: '[UNK]', continuing_subword_prefix: '##', max_input_chars_per_word: 1000, vocab } }))
}

// Package tokenizer turns text into the token ids that an engine computes for it, exactly, and back.
//
// Routing on real KV blocks is exact only when the router's tokens are the engine's. The package reads the files of
// published models (Hugging Face's tokenizer.json, tiktoken's ranks, Mistral's tekken.json) and returns the same ids as
// the official Rust tokenizer, several times as fast:
//
//	t, err := tokenizer.Load(os.DirFS("/models/qwen3"))
//	ids, err := t.Append(nil, "Hello", tokenizer.Options{AddSpecial: true})
//
// It knows nothing of chats: a template renders messages to text first (package jinja). It does not guess: it refuses a
// file with an unknown component, and names the component. It does I/O only through the fs.FS that it is given, and
// starts no goroutine.
//
// # How it is fast
//
// Patterns become deterministic machines over classes of characters (automaton.go): one table lookup a character, one
// pass over any text. A small lock-free cache holds the ids of words (wordcache.go). The merges of other words are
// found by a scan for the lowest rank, or with a heap in a long word (merges.go). Without a pre-tokenizer the word is
// the whole text; it is cut between two characters that no merge can join (bpe.go). A TurnCache keeps the ids of texts
// that grow at the end.
//
// # Unicode
//
// The reference uses tables of four Unicode versions. unicode.bin holds the properties of characters as its own crates
// report them (testdata/unicode/gen.sh). Go's tables only fold case in patterns.
//
// # Limits
//
// Truncation and padding of tokenizer.json are ignored. Transformers 5 rebuilds the pipeline of some classes
// (LlamaTokenizer, GemmaTokenizer, …) from Python code that may differ from the model's tokenizer.json. This package
// follows the file; the router's self-check compares its ids with the engine's and finds such a difference.
package tokenizer

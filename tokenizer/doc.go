// Package tokenizer turns text into token ids, and ids into text. An engine computes exactly the same ids for the text.
//
// Routing on real KV blocks is exact only when the router's tokens are the engine's. The package reads the files of
// published models (Hugging Face's tokenizer.json, tiktoken's ranks, Mistral's tekken.json) and returns the same ids as
// the official Rust tokenizer, several times as fast:
//
//	t, err := tokenizer.Load(os.DirFS("/models/qwen3"))
//	ids, err := t.Append(nil, "Hello", tokenizer.Options{AddSpecial: true})
//
// The package knows nothing about chats: a template first renders messages to text (package jinja). The package does
// not guess: if a file has an unknown component, it refuses the file and names the component. It does I/O only through
// the fs.FS of the caller.
//
// # How it is fast
//
// Patterns become deterministic machines over classes of characters (automaton.go). A machine makes one step for each
// character of a match, and does not backtrack. A small lock-free cache has the ids of words (wordcache.go). For other
// words, BPE finds the next merge by a scan for the lowest rank, or with a heap if the word is long (merges.go).
// Without a pre-tokenizer the whole text is one word. BPE cuts this word between characters that no merge can join
// (bpe.go). A TurnCache keeps the ids of texts that grow at the end.
//
// # Unicode
//
// The official Rust tokenizer, called the reference in this package, uses tables of four Unicode versions. unicode.bin
// has the properties of characters as the reference's own crates report them (testdata/unicode/gen.sh). Go's tables are
// used only for case-insensitive parts of patterns.
//
// # Limits
//
// Truncation and padding of tokenizer.json are ignored. For some classes (LlamaTokenizer, GemmaTokenizer, …)
// Transformers 5 rebuilds the pipeline from Python code, which may differ from the model's tokenizer.json. This package
// follows the file. While serving, the router compares this package's ids with the engine's ids, and finds such a
// difference.
package tokenizer

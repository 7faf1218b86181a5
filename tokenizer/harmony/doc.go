// Package harmony writes prompts in Harmony, the format that gpt-oss models are trained on. It does what the library
// openai-harmony does (src/encoding.rs of oss-harmony 0.0.10), quirks included, because a prompt must have the same
// tokens.
//
//	pieces := harmony.Render([]harmony.Message{
//		{Author: "system", Texts: []string{harmony.System("medium", time.Now(), false)}},
//		{Author: "user", Texts: []string{"Hello!"}},
//	})
//
// A prompt is a list of pieces, each to be encoded on its own: a special token that a client spells in a text stays
// text. The package knows no ids of tokens, and nothing of the requests that conversations come from.
package harmony

package workload

import "github.com/zeebo/xxh3"

// The number of tokens of a text is an estimate, and reports say so. The estimate is four bytes for a token, the usual
// ratio for English text and code.
const (
	bytesPerToken = 4
	// textPiece is the size of a segment in bytes. It is the text of 16 tokens, because 16 is a common block size of
	// engines.
	textPiece = 16 * bytesPerToken
)

const textNote = "token counts of prompts are estimated: four bytes a token"

// textTokens estimates the number of tokens in n bytes of text.
func textTokens(n int) int { return (n + bytesPerToken - 1) / bytesPerToken }

// textSegments cuts text into segments of 16 estimated tokens. A segment's id is a hash of its content, so texts with
// equal beginnings have equal leading segments.
func textSegments(text []byte) []Segment {
	segments := make([]Segment, 0, (len(text)+textPiece-1)/textPiece)
	for len(text) > 0 {
		n := min(textPiece, len(text))
		segments = append(segments, Segment{ID: xxh3.Hash(text[:n]), Tokens: textTokens(n)})
		text = text[n:]
	}
	return segments
}

package workload

import "github.com/zeebo/xxh3"

// The number of tokens of a text is an estimate, and reports say so. It assumes four bytes for a token, as English text
// and code have with the vocabularies of today's models.
const (
	bytesPerToken = 4
	// Bytes of a segment: the text of 16 tokens, the smallest block of an engine.
	textPiece = 16 * bytesPerToken
)

const textNote = "token counts of prompts are estimated: four bytes a token"

// textTokens estimates the tokens of n bytes of text.
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

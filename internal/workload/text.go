package workload

import "github.com/zeebo/xxh3"

// Text has no token counts of its own. Four bytes a token is what English and code come to with the vocabularies of today's
// models; it is an estimate, and reports say so.
const (
	bytesPerToken = 4
	textPiece     = 16 * bytesPerToken // a segment: the smallest block that engines use
)

const textNote = "token counts of prompts are estimated: four bytes a token"

// textTokens estimates the tokens of n bytes of text.
func textTokens(n int) int { return (n + bytesPerToken - 1) / bytesPerToken }

// textSegments cuts text into segments of 16 estimated tokens, named by their content, so that equal beginnings of texts
// become equal leading segments.
func textSegments(text []byte) []Segment {
	segments := make([]Segment, 0, (len(text)+textPiece-1)/textPiece)
	for len(text) > 0 {
		n := min(textPiece, len(text))
		segments = append(segments, Segment{ID: xxh3.Hash(text[:n]), Tokens: textTokens(n)})
		text = text[n:]
	}
	return segments
}

package gateway

import (
	"errors"
	"net/http"
)

// maxPrefillAnswer bounds the memory for the answer of a prefill leg, in bytes. A prompt of a million tokens has 7
// MB of ids and half a megabyte of block ids.
const maxPrefillAnswer = 16 << 20

// capture is the writer of a leg whose answer does not go to the client.
type capture struct {
	header http.Header
	body   []byte
	over   bool // the answer is larger than maxPrefillAnswer
}

var errLongAnswer = errors.New("the answer is too long")

// Header is part of http.ResponseWriter.
func (c *capture) Header() http.Header {
	if c.header == nil {
		c.header = http.Header{}
	}
	return c.header
}

// WriteHeader is part of http.ResponseWriter.
func (c *capture) WriteHeader(int) {}

// Write is part of http.ResponseWriter.
func (c *capture) Write(b []byte) (int, error) {
	if len(c.body)+len(b) > maxPrefillAnswer {
		c.over = true
		return 0, errLongAnswer
	}
	c.body = append(c.body, b...)
	return len(b), nil
}

// Flush is part of http.Flusher.
func (c *capture) Flush() {}

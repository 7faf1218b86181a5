package proxy

import (
	"errors"
	"io"
	"math/bits"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/warmpath/warmpath/internal/api"
)

// BodyConfig bounds request bodies. Start from DefaultBodyConfig.
type BodyConfig struct {
	// MaxBytes is the largest body that is accepted.
	MaxBytes int64 `yaml:"max_bytes"`
	// StallTimeout is the longest time during which no byte of a body arrives: this time plus up to a quarter of it; 0 is
	// no limit.
	StallTimeout time.Duration `yaml:"stall_timeout"`
	// Timeout is the longest time until a whole body has arrived, even if bytes arrive steadily: 64 MiB in 5 min are about
	// 2 Mbit/s. Timeout bounds the cost of a client that sends one byte a second. 0 is no limit.
	Timeout time.Duration `yaml:"timeout"`
}

// DefaultBodyConfig returns the defaults: 64 MiB, which is enough for a million tokens with some images; a StallTimeout
// of 30 s; a Timeout of 5 min.
func DefaultBodyConfig() BodyConfig {
	return BodyConfig{MaxBytes: 64 << 20, StallTimeout: 30 * time.Second, Timeout: 5 * time.Minute}
}

const (
	// smallestBody and largestKept are the sizes of the smallest and the largest pooled buffers, in bytes; both are
	// powers of two. Larger bodies are rare, and keeping their buffers would keep much memory.
	smallestBody = 4 << 10
	largestKept  = 2 << 20
	// trusted is the largest Content-Length, in bytes, for which room for the whole body is allocated before the body
	// arrives.
	trusted = 256 << 10
	classes = 10 // number of pooled sizes, 4 KiB … 2 MiB
)

// Bodies reads whole request bodies into pooled buffers. It is safe for concurrent use.
type Bodies struct {
	cfg   BodyConfig
	pools [classes]sync.Pool // pools of *Body, by the size of their buffers
}

// NewBodies returns a reader of bodies.
func NewBodies(cfg BodyConfig) *Bodies { return &Bodies{cfg: cfg} }

// Body is a request body that was read whole.
type Body struct {
	Bytes []byte
	from  *Bodies
}

// Read reads the whole body of r, with a Content-Length or in chunks. Its errors are *api.Error: 413 for a body that is
// too large, 408 for a body that stops arriving, 400 for a body that ends too early or is malformed. After an error the
// client's connection cannot be used again. Read sets the header Connection: close, so that the server closes the
// connection.
func (b *Bodies) Read(w http.ResponseWriter, r *http.Request) (*Body, error) {
	if r.ContentLength > b.cfg.MaxBytes {
		w.Header().Set("Connection", "close")
		return nil, api.TooLarge(b.cfg.MaxBytes)
	}
	size := min(r.ContentLength, trusted)
	if size < 0 {
		size = smallestBody - 1
	}
	// The buffer has room for one byte more than size, so that the read that finds the body's end needs no larger buffer.
	body := b.get(int(size) + 1)
	err := b.fill(body, http.NewResponseController(w), r)
	if err != nil {
		body.Release()
		w.Header().Set("Connection", "close")
		return nil, err
	}
	return body, nil
}

func (b *Bodies) fill(body *Body, rc *http.ResponseController, r *http.Request) error {
	var set, limit time.Time
	if b.cfg.Timeout > 0 && r.ContentLength != 0 {
		limit = time.Now().Add(b.cfg.Timeout)
		if b.cfg.StallTimeout <= 0 {
			set = limit
			rc.SetReadDeadline(limit) // an error means that the writer supports no deadline: the server's own timeouts apply
		}
	}
	defer func() {
		if !set.IsZero() {
			rc.SetReadDeadline(time.Time{}) // fails only if setting the deadline failed, too
		}
	}()
	for {
		if t := b.cfg.StallTimeout; t > 0 && r.ContentLength != 0 {
			if now := time.Now(); set.IsZero() || now.Sub(set) > t/4 {
				set = now
				// An error means that the writer supports no deadline: the server's own timeouts apply.
				rc.SetReadDeadline(earlier(now.Add(t+t/4), limit))
			}
		}
		if len(body.Bytes) == cap(body.Bytes) {
			b.grow(body)
		}
		n, err := r.Body.Read(body.Bytes[len(body.Bytes):cap(body.Bytes)])
		body.Bytes = body.Bytes[:len(body.Bytes)+n]
		switch {
		case int64(len(body.Bytes)) > b.cfg.MaxBytes:
			return api.TooLarge(b.cfg.MaxBytes)
		case err == io.EOF:
			return nil
		case errors.Is(err, os.ErrDeadlineExceeded):
			if !limit.IsZero() && !time.Now().Before(limit) {
				return api.BodySlow(b.cfg.Timeout)
			}
			return api.BodyTimeout(b.cfg.StallTimeout)
		case err != nil:
			e := api.Invalid("", "the request body ended before its end; send it whole")
			e.Cause = err
			return e
		}
	}
}

// earlier returns the earlier of t and limit. A zero limit is ignored.
func earlier(t, limit time.Time) time.Time {
	if !limit.IsZero() && limit.Before(t) {
		return limit
	}
	return t
}

// get returns an empty body with room for at least size bytes.
func (b *Bodies) get(size int) *Body {
	if size > largestKept {
		return &Body{Bytes: make([]byte, 0, size), from: b}
	}
	c := class(size)
	if body, is := b.pools[c].Get().(*Body); is {
		return body
	}
	return &Body{Bytes: make([]byte, 0, smallestBody<<c), from: b}
}

// grow doubles the size of a body's buffer.
func (b *Bodies) grow(body *Body) {
	larger := b.get(2 * cap(body.Bytes))
	larger.Bytes = append(larger.Bytes[:0], body.Bytes...)
	*body, *larger = *larger, *body
	larger.Release()
}

// Release gives the buffer back to its pool, unless the buffer is too large to be kept. Bytes must not be used
// afterwards.
func (body *Body) Release() {
	size := cap(body.Bytes)
	if size < smallestBody || size > largestKept || size&(size-1) != 0 {
		return
	}
	body.Bytes = body.Bytes[:0]
	body.from.pools[class(size)].Put(body)
}

// class returns the index of the smallest pooled size that holds size bytes.
func class(size int) int {
	return max(bits.Len(uint(size-1))-bits.Len(uint(smallestBody-1)), 0)
}

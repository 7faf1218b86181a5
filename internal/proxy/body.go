package proxy

import (
	"net/http"
	"time"
)

// BodyConfig bounds request bodies.
type BodyConfig struct {
	// MaxBytes is the largest body that is accepted.
	MaxBytes int64
	// StallTimeout is how long a body may stop arriving.
	StallTimeout time.Duration
}

// DefaultBodyConfig returns the defaults.
func DefaultBodyConfig() BodyConfig { return BodyConfig{MaxBytes: 64 << 20, StallTimeout: 30 * time.Second} }

// Bodies reads request bodies into pooled buffers. It is safe for concurrent use.
type Bodies struct{ cfg BodyConfig }

// NewBodies returns a reader of bodies.
func NewBodies(cfg BodyConfig) *Bodies { return &Bodies{cfg: cfg} }

// Body is a request body that was read whole.
type Body struct{ Bytes []byte }

// Read reads the whole body of r. Errors are *api.Error. PLACEHOLDER
func (b *Bodies) Read(w http.ResponseWriter, r *http.Request) (*Body, error) { return &Body{}, nil }

// Release gives the buffer back; Bytes must not be used after.
func (b *Body) Release() {}

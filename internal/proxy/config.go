package proxy

import (
	"crypto/tls"
	"time"
)

// Config is how a Client treats workers and clients. Start from DefaultConfig.
type Config struct {
	// ConnectTimeout bounds connecting to a worker, TLS handshake included.
	ConnectTimeout time.Duration
	// HeaderTimeout bounds the wait for the answer's header. An answer that is not streamed has its header only when the
	// last token is generated: keep it long. 0 waits for ever.
	HeaderTimeout time.Duration
	// StreamIdleTimeout bounds the silence inside an answer; 0 waits for ever.
	StreamIdleTimeout time.Duration
	// ClientTimeout bounds how long one write to the client may block; 0 waits for ever.
	ClientTimeout time.Duration
	// IdlePerWorker is how many idle connections are kept per worker.
	IdlePerWorker int
	// IdleTimeout is how long an idle connection is kept. Below the 5 s after which uvicorn (vLLM, SGLang) closes one.
	IdleTimeout time.Duration
	// MaxHeaderBytes and MaxHeaders bound the header of an answer.
	MaxHeaderBytes int
	MaxHeaders     int
	// RetryTexts are texts in the body of a 500 that mean that the worker takes no more requests.
	RetryTexts []string
	// TLS is used for https workers; nil means the system's roots.
	TLS *tls.Config
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{
		ConnectTimeout: 5 * time.Second,
		HeaderTimeout:  30 * time.Minute,
		ClientTimeout:  2 * time.Minute,
		IdlePerWorker:  256,
		IdleTimeout:    4 * time.Second,
		MaxHeaderBytes: 64 << 10,
		MaxHeaders:     128,
		RetryTexts:     []string{"cannot schedule new futures after shutdown"},
	}
}

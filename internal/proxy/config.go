package proxy

import (
	"net/http"
	"time"

	"github.com/warmpath/warmpath/internal/network"
)

// Config bounds how long a Client waits for workers and clients. Start from DefaultConfig.
type Config struct {
	// ConnectTimeout is the longest time for connecting to a worker. It includes the TLS handshake.
	ConnectTimeout time.Duration `yaml:"connect_timeout"`
	// HeaderTimeout is the longest wait for the answer's header: this time plus up to a quarter of it. The header of an
	// answer that is not streamed comes when the last token is generated, so this time must be long. 0 is no limit.
	HeaderTimeout time.Duration `yaml:"header_timeout"`
	// StreamIdleTimeout is the longest time without a byte inside an answer: this time plus up to a quarter of it; 0 is
	// no limit.
	StreamIdleTimeout time.Duration `yaml:"stream_idle_timeout"`
	// ClientTimeout is the longest time for which a client may stop reading: this time plus up to a quarter of it; 0 is
	// no limit.
	ClientTimeout time.Duration `yaml:"client_timeout"`
	// IdlePerWorker is the greatest number of idle connections that are kept for each worker.
	IdlePerWorker int `yaml:"idle_per_worker"`
	// IdleTimeout is how long an idle connection may be used again. The default is less than the 5 s after which uvicorn
	// (vLLM, SGLang) closes a connection.
	IdleTimeout time.Duration `yaml:"idle_timeout"`
	// MaxHeaderBytes and MaxHeaders bound the header of an answer.
	MaxHeaderBytes int `yaml:"max_header_bytes"`
	MaxHeaders     int `yaml:"max_headers"`
	// RetryStatuses are statuses after which another worker is asked. With such a status the worker did not take the
	// request, or could not answer it. At that time the client has seen no byte of an answer. 500 is in the default list,
	// because a request that makes one engine fail rarely fails on all engines. 3xx and 4xx need not be listed: another
	// worker gives a second opinion as long as it is not known which side is at fault.
	RetryStatuses []int `yaml:"retry_statuses"`
	// RetryTexts are texts after which another worker is asked, too, if they occur in an answer with status 300 or higher,
	// or in an error at the beginning of an answer. The defaults are texts that vLLM sends while it shuts down, and after
	// its engine process died (concurrent.futures in CPython 3.12; EngineDeadError in vLLM's
	// vllm/v1/engine/exceptions.py).
	RetryTexts []string `yaml:"retry_texts"`
	// Peers says how workers are reached. A worker that is not in the table, and every worker if Peers is nil, is reached
	// at its URL without further settings.
	Peers *network.Peers `yaml:"-"`
	// Network is the network on which workers are dialled; nil means the machine's network.
	Network network.Network `yaml:"-"`
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
		RetryStatuses:  []int{http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout},
		RetryTexts:     []string{"cannot schedule new futures after shutdown", "EngineCore encountered an issue"},
	}
}

package gateway

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/warmpath/warmpath/internal/api"
)

// Config says how the gateway treats clients.
type Config struct {
	// Headers adds X-Warmpath-Worker, -Match, -Policy and -Trust to answers. Set it to false where clients must not see
	// workers' addresses.
	Headers bool `yaml:"headers"`
	// Attempts is how many workers may be tried before the first byte. The default is 3: a worker that died, a second
	// one that dies at the same time, and one more. If all three fail, the whole fleet has a problem, and more attempts
	// only add load. 1 never retries.
	Attempts int `yaml:"attempts"`
	// Hold says how requests are held while no worker can take them. A reload applies changes.
	Hold HoldConfig `yaml:"hold"`
	// StreamRecovery says which streams continue at another worker after they lost their worker. exact: only streams
	// that then have the same text as without the loss: temperature 0, and no other field that would change the rest.
	// valid: also streams with a temperature and without a seed; the rest is then another sample of the same
	// distribution. off: none; such a stream ends with an error event. Only workers of vLLM and SGLang are asked for
	// what a recovery needs.
	StreamRecovery string `yaml:"stream_recovery"`
	// StreamSilence is how long a stream that can continue at another worker may stay without a byte before it does so.
	// It finds an engine that hangs while its server still answers questions. The default of 30 s is longer than a step
	// of any healthy engine, also if a long prompt is computed meanwhile. A shorter time moves streams of engines that
	// are only slow, which costs work and no text. After this time without a byte, a continuation goes to a further
	// worker, or ends with an error event. 0: such streams stay.
	StreamSilence time.Duration `yaml:"stream_silence"`
	// TransferTimeout is how long the KV blocks of a divided request may take from the end of the prefill leg to the
	// first token. Then the transfer counts as failed, and the request is sent again. The first token of an answer in
	// one piece is not seen, so such an answer also gets four times the predicted time of its longest form, unless its
	// prefill worker becomes unhealthy. A prefill leg is given up after the same time and four times its predicted time.
	// The default of 30 s is the time for which vLLM keeps the blocks of a prefill leg (kv_lease_duration). 0: no limit.
	TransferTimeout time.Duration `yaml:"transfer_timeout"`
	// RequestTimeout is the longest time for a request, from its head to the last byte of the answer; then the request
	// is ended. The default is 30 min, as in other gateways, because reasoning answers can be long. 0: no limit.
	RequestTimeout time.Duration `yaml:"request_timeout"`
	// ReadHeaderTimeout closes a connection whose request head does not arrive in time. 10 s is enough for slow links,
	// and bounds what half-open connections cost.
	ReadHeaderTimeout time.Duration `yaml:"read_header_timeout"`
	// IdleTimeout closes a client's kept-alive connection without requests. The default of 2 min is above the usual
	// minute of load balancers, so that the balancer closes first.
	IdleTimeout time.Duration `yaml:"idle_timeout"`
	// MaxHeaderBytes and MaxHeaders bound a request's head; a larger head is answered 431. 64 KiB and 256 fields hold
	// any reasonable set of tracing and identity headers.
	MaxHeaderBytes int `yaml:"max_header_bytes"`
	MaxHeaders     int `yaml:"max_headers"`
	// HTTP2 also serves clients that begin with HTTP/2 in clear text (prior knowledge), such as service meshes. Off by
	// default: few clients do so, and a balancer that counts connections sees one connection with many requests.
	HTTP2 bool `yaml:"http2"`
	// WorkerOrders also answers the endpoints that change workers at the listener for clients: /flush_cache, /sleep and
	// /wake_up. Off by default: they belong to the admin listener, because any client could stop the whole fleet.
	WorkerOrders bool `yaml:"worker_orders"`
	// SessionHeaders and SessionFields say where a request's session key is looked for: first in the headers, then in
	// the body's fields, each in this order. Policies with sessions use the key. The defaults are the names and the
	// order of other routers. x-request-id and x-trace-id are left out, because a proxy may make a new id for each
	// request; add these headers where they name conversations. Possible fields: session_params, user, session_id,
	// user_id, prompt_cache_key.
	SessionHeaders []string `yaml:"session_headers"`
	SessionFields  []string `yaml:"session_fields"`
	// TenantHeader names the header with the tenant, for fairness. Set it only where a proxy in front overwrites that
	// header; otherwise a client could write any tenant. Empty: the tenant is a hash of the request's API key.
	TenantHeader string `yaml:"tenant_header"`
	// DrainTimeout is how long requests in flight may continue after the router stopped accepting connections, that is
	// after DrainDelay; then these requests are cut. The default is 2 min: most answers end sooner, and orchestrators
	// rarely wait longer.
	DrainTimeout time.Duration `yaml:"drain_timeout"`
	// DrainDelay is how long new connections are still accepted after readiness turned to 503, so that load balancers
	// notice before connections are refused. 0 suits a process without a load balancer.
	DrainDelay time.Duration `yaml:"drain_delay"`
}

// DefaultConfig is the configuration without a file: headers are shown, three workers are tried, a request is held for
// up to 30 s while there is no worker, and may take half an hour.
func DefaultConfig() Config {
	return Config{
		Headers:           true,
		Attempts:          3,
		Hold:              DefaultHoldConfig(),
		StreamRecovery:    RecoverExact,
		StreamSilence:     30 * time.Second,
		TransferTimeout:   30 * time.Second,
		RequestTimeout:    30 * time.Minute,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		MaxHeaders:        256,
		SessionHeaders: []string{"x-smg-routing-key", "x-sgl-routing-key", "x-aibrix-session-key", "x-semantic-cluster-id",
			"x-session-id", "x-user-id", "x-tenant-id", "x-correlation-id"},
		SessionFields: []string{"session_params", "user", "session_id", "user_id", "prompt_cache_key"},
		DrainTimeout:  2 * time.Minute,
	}
}

// Validate returns all problems of c, each beginning with the name of its field.
func (c Config) Validate() error {
	var problems []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			problems = append(problems, fmt.Errorf(format, args...))
		}
	}
	check(c.Attempts >= 1 && c.Attempts <= 16, "attempts: %d is outside 1..16", c.Attempts)
	c.Hold.validate(check)
	check(slices.Contains([]string{RecoverExact, RecoverValid, RecoverOff}, c.StreamRecovery), "stream_recovery: %q is none of exact, valid, off", c.StreamRecovery)
	check(c.StreamSilence >= 0, "stream_silence: %v is negative", c.StreamSilence)
	check(c.TransferTimeout >= 0, "transfer_timeout: %v is negative", c.TransferTimeout)
	check(c.RequestTimeout >= 0, "request_timeout: %v is negative", c.RequestTimeout)
	check(c.ReadHeaderTimeout > 0, "read_header_timeout: %v is not positive: half-open connections would stay for ever", c.ReadHeaderTimeout)
	check(c.IdleTimeout > 0, "idle_timeout: %v is not positive", c.IdleTimeout)
	check(c.MaxHeaderBytes >= 4096, "max_header_bytes: %d is below 4096", c.MaxHeaderBytes)
	check(c.MaxHeaders >= 16, "max_headers: %d is below 16", c.MaxHeaders)
	for _, name := range c.SessionHeaders {
		check(fieldName(name), "session_headers: %q is not the name of a header", name)
	}
	for _, name := range c.SessionFields {
		_, ok := api.SessionField(name)
		check(ok, "session_fields: %q is none of session_params, user, session_id, user_id, prompt_cache_key", name)
	}
	check(c.TenantHeader == "" || fieldName(c.TenantHeader), "tenant_header: %q is not the name of a header", c.TenantHeader)
	check(c.DrainTimeout >= 0, "drain_timeout: %v is negative", c.DrainTimeout)
	check(c.DrainDelay >= 0, "drain_delay: %v is negative", c.DrainDelay)
	return errors.Join(problems...)
}

// fieldName reports whether s can be the name of a header field: letters, digits, dashes and underscores.
func fieldName(s string) bool {
	for _, c := range []byte(s) {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_') {
			return false
		}
	}
	return s != ""
}

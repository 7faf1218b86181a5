package gateway

import (
	"errors"
	"fmt"
	"time"
)

// Config is how the front treats clients.
type Config struct {
	// Headers adds X-Warmpath-Worker, -Match, -Policy and -Trust to answers. On, because seeing where a request went is
	// what people ask first; turn it off where workers' addresses must not be shown.
	Headers bool `yaml:"headers"`
	// Attempts is how many workers a request may be tried on before the first byte. 3: one that died, one that is dying
	// with it, and one more; beyond that the fleet is ill and more load does not heal it. 1 never retries.
	Attempts int `yaml:"attempts"`
	// RequestTimeout ends a request that takes longer, from its head to its last byte. 30 min, what the other gateways
	// use: long reasoning answers exist. 0 never ends one.
	RequestTimeout time.Duration `yaml:"request_timeout"`
	// ReadHeaderTimeout closes a connection whose request head does not arrive. 10 s is generous to slow links and
	// bounds what half-open connections cost.
	ReadHeaderTimeout time.Duration `yaml:"read_header_timeout"`
	// IdleTimeout closes a client's kept-alive connection without requests. 2 min, above the usual minute of load
	// balancers, so that it is they who close.
	IdleTimeout time.Duration `yaml:"idle_timeout"`
	// MaxHeaderBytes and MaxHeaders bound a request's head; beyond them the answer is 431. 64 KiB and 256 fields hold any
	// sane set of tracing and identity headers.
	MaxHeaderBytes int `yaml:"max_header_bytes"`
	MaxHeaders     int `yaml:"max_headers"`
	// DrainTimeout is how long requests in flight may go on after the signal to stop; then they are cut. 2 min: most
	// answers end within it, and orchestrators rarely wait longer.
	DrainTimeout time.Duration `yaml:"drain_timeout"`
	// DrainDelay is how long new connections are still taken after readiness began to say 503, so that load balancers
	// notice first. 0 suits a process without one in front.
	DrainDelay time.Duration `yaml:"drain_delay"`
}

// DefaultConfig shows headers, tries three workers and waits half an hour.
func DefaultConfig() Config {
	return Config{
		Headers:           true,
		Attempts:          3,
		RequestTimeout:    30 * time.Minute,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		MaxHeaders:        256,
		DrainTimeout:      2 * time.Minute,
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
	check(c.RequestTimeout >= 0, "request_timeout: %v is negative", c.RequestTimeout)
	check(c.ReadHeaderTimeout > 0, "read_header_timeout: %v is not positive: half-open connections would stay for ever", c.ReadHeaderTimeout)
	check(c.IdleTimeout > 0, "idle_timeout: %v is not positive", c.IdleTimeout)
	check(c.MaxHeaderBytes >= 4096, "max_header_bytes: %d is below 4096", c.MaxHeaderBytes)
	check(c.MaxHeaders >= 16, "max_headers: %d is below 16", c.MaxHeaders)
	check(c.DrainTimeout >= 0, "drain_timeout: %v is negative", c.DrainTimeout)
	check(c.DrainDelay >= 0, "drain_delay: %v is negative", c.DrainDelay)
	return errors.Join(problems...)
}

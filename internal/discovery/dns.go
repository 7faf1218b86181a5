package discovery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// DNSConfig are DNS names whose answers are workers.
type DNSConfig struct {
	// Names are workers whose host is a DNS name. Each address of the name is a worker with the port and the settings
	// of the entry, such as the pods of a headless service in Kubernetes: http://vllm.default.svc.cluster.local:8000.
	// If the host is the name of a service (RFC 2782), such as _http._tcp.vllm.example.com, each of its SRV records is
	// a worker: the record gives host and port.
	Names []Target `yaml:"names"`
	// Interval is the time between two questions about a name. Default 5 s, which is the usual lifetime of answers in
	// Kubernetes. Answers are not remembered for longer, whatever their lifetime.
	Interval time.Duration `yaml:"interval"`
}

// DefaultDNSConfig asks about no name.
func DefaultDNSConfig() DNSConfig { return DNSConfig{Names: []Target{}, Interval: 5 * time.Second} }

// Validate returns all problems of c. Each begins with the name of its field.
func (c DNSConfig) Validate() error {
	var problems []error
	if c.Interval < 100*time.Millisecond {
		problems = append(problems, fmt.Errorf("interval: %v is below 100ms", c.Interval))
	}
	for i, t := range c.Names {
		n, err := t.normalize()
		if err == nil {
			err = t.Validate()
		}
		if err == nil {
			u, _ := url.Parse(n.URL)
			_, notName := netip.ParseAddr(n.host())
			switch {
			case n.overUnix():
				err = errors.New("a Unix socket has no DNS name")
			case notName == nil:
				err = fmt.Errorf("%s is an address and not a DNS name: list the worker under workers", n.host())
			case isService(n.host()) && u.Port() != "":
				err = errors.New("SRV records give the port: write the URL without a port")
			}
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("names[%d]: %w", i, err))
		}
	}
	return errors.Join(problems...)
}

// isService reports whether a name is one of SRV records: _service._protocol.domain.
func isService(name string) bool { return strings.HasPrefix(name, "_") }

const (
	// maxAnswers bounds the workers of one name.
	maxAnswers = 1024
	// leaveListed is how long a worker that is no longer in the answers, or in the file of workers, may take to end its
	// requests. Kubernetes kills a pod after terminationGracePeriodSeconds, which is 30 s by default and minutes for
	// engines.
	leaveListed = 5 * time.Minute
)

// DNS asks for the addresses of names, and makes them workers.
type DNS struct {
	config   DNSConfig
	workers  *Watcher
	resolver *net.Resolver
	log      *slog.Logger
	answers  [][]Target // the last answer of each name
	failed   []string   // the error of the last question about each name; "" is none
}

// NewDNS returns the source of workers for c, which has passed Validate. A nil resolver means the machine's. It starts
// nothing.
func NewDNS(c DNSConfig, workers *Watcher, resolver *net.Resolver, log *slog.Logger) *DNS {
	if resolver == nil {
		resolver = net.DefaultResolver
	}
	return &DNS{config: c, workers: workers, resolver: resolver, log: log, answers: make([][]Target, len(c.Names)), failed: make([]string, len(c.Names))}
}

// Run asks about the names until ctx ends, and then returns nil. When a question fails or has no answer, the workers of
// the last answer stay: a DNS server that is down must not remove workers that serve, and workers that are gone fail
// their health checks.
func (d *DNS) Run(ctx context.Context) error {
	ticks := time.NewTicker(d.config.Interval)
	defer ticks.Stop()
	for {
		d.look(ctx)
		select {
		case <-ticks.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// look asks about each name once, one after the other.
func (d *DNS) look(ctx context.Context) {
	for i, t := range d.config.Names {
		limit, cancel := context.WithTimeout(ctx, max(d.config.Interval, time.Second))
		found, err := d.resolve(limit, t)
		cancel()
		if ctx.Err() != nil {
			return
		}
		why := ""
		if err != nil {
			why = err.Error()
		} else {
			d.answers[i] = found
		}
		if why != d.failed[i] && why != "" {
			d.log.Warn("a DNS name of workers has no answer: the workers of the last answer stay", "name", t.host(), "workers", len(d.answers[i]), "error", err)
		} else if why == "" && d.failed[i] != "" {
			d.log.Info("a DNS name of workers has an answer again", "name", t.host(), "workers", len(found))
		}
		d.failed[i] = why
	}
	apply, err := d.workers.Prepare(SourceDNS, union(d.answers))
	if err != nil {
		d.log.Error("the answers of DNS cannot be used", "error", err)
		return
	}
	apply()
}

// Lookup asks about each name of c once, and returns the workers of all answers. A nil resolver means the machine's.
// The error joins those of the names that have no answer.
func (c DNSConfig) Lookup(ctx context.Context, resolver *net.Resolver) (all []Target, err error) {
	d := NewDNS(c, nil, resolver, slog.New(slog.DiscardHandler))
	for i, t := range c.Names {
		var failed error
		d.answers[i], failed = d.resolve(ctx, t)
		err = errors.Join(err, failed)
	}
	return union(d.answers), err
}

// union returns the workers of all answers, each URL once.
func union(answers [][]Target) (all []Target) {
	for _, list := range answers {
		for _, t := range list {
			if index(all, t.URL) < 0 {
				all = append(all, t)
			}
		}
	}
	return all
}

// resolve returns the workers of a name, in the order of their URLs. Without an answer it returns an error. If a name
// has IPv4 addresses, its IPv6 addresses do not count: they are usually those of the same machines.
func (d *DNS) resolve(ctx context.Context, t Target) (found []Target, err error) {
	u, err := url.Parse(t.URL)
	if err != nil {
		return nil, err
	}
	add := func(host, port string) error {
		next, at := t, *u
		at.Host = host
		if port != "" {
			at.Host = net.JoinHostPort(host, port)
		} else if strings.Contains(host, ":") {
			at.Host = "[" + host + "]"
		}
		if next.URL = at.String(); u.Scheme == "https" && next.TLS.ServerName == "" && !isService(u.Hostname()) {
			next.TLS.ServerName = u.Hostname()
		}
		if next, err = next.normalize(); err == nil {
			found = append(found, next)
		}
		return err
	}
	if isService(u.Hostname()) {
		_, records, err := d.resolver.LookupSRV(ctx, "", "", u.Hostname())
		for _, r := range records {
			if err := add(strings.TrimSuffix(r.Target, "."), strconv.Itoa(int(r.Port))); err != nil {
				return nil, err
			}
		}
		if err != nil && len(found) == 0 {
			return nil, err
		}
	} else {
		addresses, err := d.resolver.LookupNetIP(ctx, "ip4", u.Hostname())
		if missing := new(net.DNSError); errors.As(err, &missing) && missing.IsNotFound || err == nil && len(addresses) == 0 {
			addresses, err = d.resolver.LookupNetIP(ctx, "ip6", u.Hostname())
		}
		if err != nil {
			return nil, err
		}
		for _, a := range addresses {
			if err := add(a.Unmap().String(), u.Port()); err != nil {
				return nil, err
			}
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%s has no address", u.Hostname())
	}
	return inOrder(found), nil
}

// inOrder returns the first maxAnswers of the workers in the order of their URLs, each URL once. The order comes before
// the bound, because servers shuffle their answers: otherwise other workers would be beyond the bound each time.
func inOrder(found []Target) []Target {
	slices.SortFunc(found, func(a, b Target) int { return strings.Compare(a.URL, b.URL) })
	found = slices.CompactFunc(found, func(a, b Target) bool { return a.URL == b.URL })
	return found[:min(len(found), maxAnswers)]
}

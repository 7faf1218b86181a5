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
	unusable []string   // what was wrong with records of the last answer of each name; "" is nothing
}

// NewDNS returns the source of workers for c, which has passed Validate. A nil resolver means the machine's. It starts
// nothing.
func NewDNS(c DNSConfig, workers *Watcher, resolver *net.Resolver, log *slog.Logger) *DNS {
	if resolver == nil {
		resolver = net.DefaultResolver
	}
	return &DNS{config: c, workers: workers, resolver: resolver, log: log, answers: make([][]Target, len(c.Names)),
		failed: make([]string, len(c.Names)), unusable: make([]string, len(c.Names))}
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
		found, wrong, err := d.resolve(limit, t)
		cancel()
		if ctx.Err() != nil {
			return
		}
		why := ""
		if err != nil {
			why = err.Error()
		} else {
			d.answers[i] = found
			d.noteUnusable(i, len(found), wrong)
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

// noteUnusable logs that an answer has records that cannot be workers, once until the records change. The records are
// compared by what is wrong with them: servers shuffle their answers, so these texts are sorted.
func (d *DNS) noteUnusable(i, workers int, wrong []string) {
	slices.Sort(wrong)
	text := strings.Join(slices.Compact(wrong), "; ")
	if text != d.unusable[i] && text != "" {
		const most = 500 // an answer may have hundreds of wrong records
		d.log.Warn("a DNS name of workers has records that cannot be used: the other records are workers", "name", d.config.Names[i].host(), "workers", workers,
			"error", text[:min(len(text), most)])
	}
	d.unusable[i] = text
}

// Lookup asks about each name of c once, and returns the workers of all answers. A nil resolver means the machine's.
// The error joins those of the names that have no answer.
func (c DNSConfig) Lookup(ctx context.Context, resolver *net.Resolver) (all []Target, err error) {
	d := NewDNS(c, nil, resolver, slog.New(slog.DiscardHandler))
	for i, t := range c.Names {
		var failed error
		d.answers[i], _, failed = d.resolve(ctx, t)
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
// has IPv4 addresses, its IPv6 addresses do not count: they are usually those of the same machines. A record that
// cannot be a worker does not take the workers of the other records away: wrong says what is wrong with such records.
func (d *DNS) resolve(ctx context.Context, t Target) (found []Target, wrong []string, err error) {
	u, err := url.Parse(t.URL)
	if err != nil {
		return nil, nil, err
	}
	add := func(host, port string) {
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
		next, err := next.normalize()
		if err != nil {
			wrong = append(wrong, err.Error())
			return
		}
		found = append(found, next)
	}
	if isService(u.Hostname()) {
		// The error may come with records: it then says that the answer has other records with an invalid name.
		_, records, err := d.resolver.LookupSRV(ctx, "", "", u.Hostname())
		if err != nil && len(records) == 0 {
			return nil, nil, err
		} else if err != nil {
			wrong = append(wrong, err.Error())
		}
		for _, r := range records {
			add(strings.TrimSuffix(r.Target, "."), strconv.Itoa(int(r.Port)))
		}
	} else {
		addresses, err := d.resolver.LookupNetIP(ctx, "ip4", u.Hostname())
		if missing := new(net.DNSError); errors.As(err, &missing) && missing.IsNotFound || err == nil && len(addresses) == 0 {
			addresses, err = d.resolver.LookupNetIP(ctx, "ip6", u.Hostname())
		}
		if err != nil {
			return nil, nil, err
		}
		for _, a := range addresses {
			add(a.Unmap().String(), u.Port())
		}
	}
	switch {
	case len(found) > 0:
		return inOrder(found), wrong, nil
	case len(wrong) > 0:
		return nil, nil, fmt.Errorf("%s has no record that can be used: %s", u.Hostname(), wrong[0])
	}
	return nil, nil, fmt.Errorf("%s has no address", u.Hostname())
}

// inOrder returns the first maxAnswers of the workers in the order of their URLs, each URL once. The order comes before
// the bound, because servers shuffle their answers: otherwise other workers would be beyond the bound each time.
func inOrder(found []Target) []Target {
	slices.SortFunc(found, func(a, b Target) int { return strings.Compare(a.URL, b.URL) })
	found = slices.CompactFunc(found, func(a, b Target) bool { return a.URL == b.URL })
	return found[:min(len(found), maxAnswers)]
}

package config

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/connector"
	"github.com/warmpath/warmpath/internal/discovery"
	"github.com/warmpath/warmpath/internal/queue"
	"github.com/warmpath/warmpath/internal/tenant"
	"github.com/warmpath/warmpath/policy"
)

// FlagForm says how many values a flag takes.
type FlagForm uint8

// The forms of flags.
const (
	OneValue   FlagForm = iota
	ManyValues          // all arguments up to the next flag, as argparse's nargs="*"
	NoValue             // the flag alone
)

// ForeignFlag is a flag of another router that `warmpath serve` knows.
type ForeignFlag struct {
	Name string // without the dashes
	Of   string // the routers that have the flag
	Form FlagForm
	// Advice says what to do instead of a flag that has no counterpart. Refused says that the router does not start
	// with the flag, because without its effect requests would go elsewhere, or be less protected. The flag is
	// otherwise a warning.
	Advice  string
	Refused bool
	// apply changes the configuration, and returns the setting that it changed, with its value.
	apply func(f *foreign, values []string) (setting string, err error)
}

// GivenFlag is a flag with the values that were typed.
type GivenFlag struct {
	Name   string
	Values []string
}

// MappedFlag says what became of a given flag.
type MappedFlag struct {
	Flag    string // as typed; without the values of flags with keys
	Of      string
	Setting string // the setting that has the flag's effect now, with its value; "": there is none
	Advice  string // what to do instead; "" if nothing has to be done
}

// foreign collects what the flags say together.
type foreign struct {
	*Config
	explicit   bool // a flag names the policy
	trusts     bool // a header names the tenant
	heeded     bool // the advice of the present flag is heeded already
	queueless  bool // a flag says that no request waits
	parameters []foreignParameter
}

// foreignParameter is a parameter of a policy.
type foreignParameter struct {
	flag             int // index in the list of results
	kind, key, value string
}

// ApplyForeign changes c as the given flags of other routers say. The flags have the names of SharedFlags and of
// ForeignFlags. The error has every flag that cannot be honoured, and says what to do instead.
func ApplyForeign(c *Config, given []GivenFlag) ([]MappedFlag, error) {
	f := &foreign{Config: c}
	var errs []error
	var mapped []MappedFlag
	// In the order of the table: workers come before what changes all of them.
	for _, row := range slices.Concat(SharedFlags(), ForeignFlags()) {
		i := slices.IndexFunc(given, func(g GivenFlag) bool { return g.Name == row.Name })
		if i < 0 {
			continue
		}
		typed := "--" + row.Name
		if len(given[i].Values) > 0 && row.Form != NoValue && !isSecret.MatchString(strings.ReplaceAll(row.Name, "-", "_")) {
			typed += " " + Redact(strings.Join(given[i].Values, " "))
		}
		m := MappedFlag{Flag: typed, Of: row.Of, Advice: row.Advice}
		switch {
		case row.Refused:
			errs = append(errs, fmt.Errorf("--%s of %s has no counterpart: %s", row.Name, row.Of, row.Advice))
			continue
		case row.apply != nil:
			f.heeded = false
			setting, err := row.apply(f, given[i].Values)
			if f.heeded {
				m.Advice = ""
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("--%s: %w", row.Name, err))
				continue
			}
			if m.Setting = setting; setting == "" && row.Advice == "" && len(f.parameters) > 0 && f.parameters[len(f.parameters)-1].flag < 0 {
				f.parameters[len(f.parameters)-1].flag = len(mapped)
			} else if setting == "" && row.Advice == "" {
				continue // the value is Warmpath's own
			}
		}
		mapped = append(mapped, m)
	}
	f.usePolicy(mapped)
	return mapped, errors.Join(errs...)
}

// usePolicy makes the collected parameters a part of the policy's name. Without a flag that names the policy, the
// policy is the one that has the first parameter: it is the default of the router that has the flag.
func (f *foreign) usePolicy(mapped []MappedFlag) {
	if len(f.parameters) == 0 {
		return
	}
	if !f.explicit {
		f.Policy = f.parameters[0].kind
	}
	for _, p := range f.parameters {
		m := &mapped[p.flag]
		if kind, _, _ := strings.Cut(f.Policy, ":"); kind != p.kind {
			m.Advice = fmt.Sprintf("the flag has no effect with policy %s: leave it out, or choose --policy %s", kind, p.kind)
			continue
		}
		sign := ","
		if !strings.Contains(f.Policy, ":") {
			sign = ":"
		}
		f.Policy += sign + p.key + "=" + p.value
		m.Setting = "policy " + p.kind + ", parameter " + p.key + ": " + p.value
	}
}

// parameter returns a function that collects a parameter of a kind of policy. constant replaces the value of a flag
// without a value. The function read turns the flag's text into the parameter's; nil leaves it.
func parameter(kind, key, constant string, read func(string) (string, error)) func(*foreign, []string) (string, error) {
	return func(f *foreign, values []string) (string, error) {
		value := cmp.Or(constant, strings.Join(values, ""))
		var err error
		if read != nil {
			value, err = read(value)
		}
		if k, ok := warmpath.PolicyKinds().Find(kind); err == nil && ok {
			var p policy.Parameters = f.Routing.defaults(k)
			err = k.Set(p, key, value)
		}
		if err == nil {
			f.parameters = append(f.parameters, foreignParameter{-1, kind, key, value})
		}
		return "", err
	}
}

// foreignPolicies are the names of other routers' policies that have another name here.
var foreignPolicies = map[string]string{
	"cache_aware_zmq": "kv_aware", "consistent_hashing": "consistent_hash", "sticky_least_loaded": "session_affinity",
	"power-of-two": "power_of_two", "round-robin": "round_robin", "roundrobin": "round_robin", "least-loaded": "least_load", "prefixaware": "cache_aware",
	"kvaware": "kv_aware", "session": "session_affinity",
}

// policyName reads a policy's name. A name that both routers have means Warmpath's policy: it has the same formula.
func (f *foreign) policyName(values []string) (string, error) {
	name := strings.Join(values, "")
	f.Policy, f.explicit = name, true
	if _, own := warmpath.PolicyKinds().Find(name); own {
		return "", nil
	}
	if own, ok := foreignPolicies[name]; ok {
		f.Policy = own
		return "policy: " + own, nil
	}
	return "", nil // Validate says which names are known
}

// legPolicy reads the name of a policy for prefill or decode workers.
func legPolicy(setting string, at func(*Disaggregation) *string) func(*foreign, []string) (string, error) {
	return func(f *foreign, values []string) (string, error) {
		name := strings.Join(values, "")
		*at(&f.Disaggregation) = name
		if own, ok := foreignPolicies[name]; ok {
			if _, known := warmpath.PolicyKinds().Find(name); !known {
				*at(&f.Disaggregation) = own
				return setting + ": " + own, nil
			}
		}
		return "", nil // Validate says which names are known
	}
}

// routerMode reads Dynamo's mode, or the routing logic of vLLM's production stack.
func (f *foreign) routerMode(values []string) (string, error) {
	name := strings.Join(values, "")
	if own, ok := foreignPolicies[name]; ok {
		name = own
	}
	if _, ok := warmpath.PolicyKinds().Find(name); !ok {
		return "", fmt.Errorf("%q has no counterpart: choose --policy NAME (%s)", name, strings.Join(kindNames(), ", "))
	}
	f.Policy, f.explicit = name, true
	return "policy: " + name, nil
}

// logLevel reads a name of Python's logging.
func (f *foreign) logLevel(values []string) (string, error) {
	level, ok := map[string]string{"warning": "warn", "critical": "error"}[strings.Join(values, "")]
	if !ok {
		return "", nil
	}
	f.Telemetry.LogLevel = level
	return "telemetry.log_level: " + level, nil
}

func (f *foreign) workers(values []string) (string, error) {
	var urls []string
	for _, value := range values {
		for url := range strings.SplitSeq(value, ",") { // the production stack separates URLs by commas
			if url = strings.TrimSpace(url); url == "" {
				continue
			}
			t, err := discovery.ParseTarget(url)
			if err != nil {
				return "", err
			}
			f.Workers = append(f.Workers, t)
			urls = append(urls, t.URL)
		}
	}
	if len(urls) == 0 {
		return "", errors.New("it names no worker")
	}
	return "workers: " + strings.Join(urls, ", "), nil
}

// add adds a worker with a role. It returns the worker's URL.
func (f *foreign) add(text string, role fleet.Role, port int) (url string, err error) {
	t, err := discovery.ParseTarget(text)
	if err != nil {
		return "", err
	}
	t.Role, t.TransferPort = role.String(), port
	f.Workers = append(slices.Clone(f.Workers), t)
	return t.URL, nil
}

// prefillWorkers reads URL [BOOTSTRAP_PORT] … of SMG and its relatives. The port may be none.
func (f *foreign) prefillWorkers(values []string) (string, error) {
	var urls []string
	for i := 0; i < len(values); i++ {
		port := 0
		text := values[i]
		if i+1 < len(values) && !strings.Contains(values[i+1], ":") {
			i++
			if n, err := strconv.Atoi(values[i]); err == nil && n >= 1 && n <= 65535 {
				port = n
			} else if !strings.EqualFold(values[i], "none") {
				return "", fmt.Errorf("%.40q behind %s is neither the port of the worker's bootstrap server nor none", values[i], Redact(text))
			}
		}
		url, err := f.add(text, fleet.RolePrefill, port)
		if err != nil {
			return "", err
		}
		urls = append(urls, url)
	}
	return "workers with the role prefill: " + strings.Join(urls, ", "), nil
}

func (f *foreign) decodeWorkers(values []string) (string, error) {
	var urls []string
	for _, text := range values {
		url, err := f.add(text, fleet.RoleDecode, 0)
		if err != nil {
			return "", err
		}
		urls = append(urls, url)
	}
	return "workers with the role decode: " + strings.Join(urls, ", "), nil
}

// connector reads the connector of vllm-router: nixl or mooncake. moriio is refused, because this router does not have
// it.
func (f *foreign) connector(values []string) (string, error) {
	name := strings.Join(values, "")
	if _, ok := connector.Find(name); !ok {
		return "", fmt.Errorf("%.40q is none of %s", name, strings.Join(connector.Names(), ", "))
	}
	return f.each("connector of all workers: "+name, func(t *discovery.Target) { t.Connector = name })
}

// each changes all workers.
func (f *foreign) each(setting string, change func(*discovery.Target)) (string, error) {
	if len(f.Workers) == 0 {
		return "", errors.New("there are no workers: name them with --worker-urls or --worker")
	}
	f.Workers = slices.Clone(f.Workers)
	for i := range f.Workers {
		change(&f.Workers[i])
	}
	return setting, nil
}

// eventSource reads WORKER_URL=ENDPOINT[,ENDPOINT…] of vllm-router: the endpoints of the ranks of one worker.
func eventSource(setting string, at func(*discovery.Target) *string) func(*foreign, []string) (string, error) {
	return func(f *foreign, values []string) (string, error) {
		for _, value := range values {
			url, endpoints, ok := strings.Cut(value, "=")
			if !ok {
				return "", fmt.Errorf("%q is not WORKER_URL=ENDPOINT", value)
			}
			want := discovery.Target{URL: url}.Canonical()
			i := slices.IndexFunc(f.Workers, func(t discovery.Target) bool { return want != "" && t.Canonical() == want })
			if i < 0 {
				return "", fmt.Errorf("%s is none of the workers", Redact(url))
			}
			first, _, _ := strings.Cut(endpoints, ",") // rank r has port + r, as in both engines
			f.Workers = slices.Clone(f.Workers)
			*at(&f.Workers[i]) = first
		}
		return setting + " of the workers: " + strings.Join(values, " "), nil
	}
}

// apiKey gives the key to all workers. SMG and sglang-router also refuse clients without it, so the router must not be
// open, either.
func (f *foreign) apiKey(values []string) (string, error) {
	key := strings.Join(values, "")
	if key == "" {
		return "", errors.New("the key is empty")
	}
	setting := "api_key of all workers"
	if f.Tenants == nil && f.TenantsFile == "" {
		f.Tenants = []tenant.Config{{Name: "default", KeysSHA256: []string{tenant.KeySHA256(key)}}}
		setting += ", and of the tenant default: clients need it, as with SMG and sglang-router"
	}
	return f.each(setting, func(t *discovery.Target) { t.APIKey = key })
}

// queueFlag applies a flag of a queue. Other routers' queues are for a limit of all requests together, which most of
// their command lines do not set, and they refuse what finds the queue full. So the flags do not turn the queue on:
// requests that those routers would serve would be refused.
func queueFlag(apply func(*foreign, []string) (string, error)) func(*foreign, []string) (string, error) {
	return func(f *foreign, values []string) (string, error) {
		f.heeded = f.Queue.On()
		return apply(f, values)
	}
}

// queueSize reads the length of the queue. With 0 other routers have no queue.
func (f *foreign) queueSize(values []string) (string, error) {
	if n, err := wholeNumber(values); err == nil && n == 0 {
		f.heeded, f.queueless, f.Queue.Order = true, true, queue.Off
		return "queue.order: off", nil
	}
	return wholeTo("queue.max_requests (it counts if queue.order is not off)", func(c *Config) *int { return &c.Queue.MaxRequests })(f, values)
}

// queueTimeout reads how long a request waits in the queue. SMG, sglang-router and vllm-router refuse 0 as long as they
// have a queue (config/validation.rs).
func (f *foreign) queueTimeout(values []string) (string, error) {
	if n, err := strconv.ParseFloat(strings.Join(values, ""), 64); err == nil && n == 0 {
		if f.queueless {
			f.heeded = true
			return "none: no request waits, as --queue-size 0 says", nil
		}
		return "", errors.New("0 is no time to wait: name a number of seconds, or a queue size of 0, with which no request waits")
	}
	return seconds("queue.max_wait (it counts if queue.order is not off)", func(c *Config) *time.Duration { return &c.Queue.MaxWait })(f, values)
}

// attempts reads a number that other routers call retries. They count the first attempt, too.
func (f *foreign) attempts(values []string) (string, error) {
	n, err := wholeNumber(values)
	if err != nil {
		return "", err
	}
	f.Gateway.Attempts = max(n, 1)
	return fmt.Sprintf("gateway.attempts: %d", f.Gateway.Attempts), nil
}

// authorities sets the file with the authorities of the workers' certificates.
func (f *foreign) authorities(values []string) (string, error) {
	if len(values) != 1 {
		return "", errors.New("one file can be named: join the files, cat A.pem B.pem > ca.pem")
	}
	f.WorkerDefaults.TLS.CAFile = values[0]
	return "worker_defaults.tls.ca_file: " + values[0], nil
}

// traces turns traces on. The collector is HOST:PORT, and takes OTLP over gRPC.
func (f *foreign) traces(collector string) (string, error) {
	if !strings.Contains(collector, "://") {
		collector = "http://" + collector
	}
	t := &f.Telemetry.Traces
	t.Endpoint, t.Protocol = collector, "grpc"
	return fmt.Sprintf("telemetry.traces: {endpoint: %q, protocol: %s}", Redact(collector), t.Protocol), nil
}

// tenantHeader reads the header that names tenants. It counts only if SMG trusts it.
func (f *foreign) tenantHeader(values []string) (string, error) {
	if !f.trusts {
		return "none, as in SMG: the header counts with --trust-tenant-header", nil
	}
	f.Gateway.TenantHeader = strings.Join(values, "")
	return "gateway.tenant_header: " + f.Gateway.TenantHeader, nil
}

// addressPart replaces the host or the port of an address.
func addressPart(setting string, port bool, at func(*Config) *string) func(*foreign, []string) (string, error) {
	return func(f *foreign, values []string) (string, error) {
		value, to := strings.Join(values, ""), at(f.Config)
		host, number, err := net.SplitHostPort(*to)
		if err != nil {
			return "", err
		}
		if port {
			if n, err := strconv.Atoi(value); err != nil || n < 0 || n > 65535 {
				return "", fmt.Errorf("%q is not a port", value)
			}
			number = value
		} else {
			host = value
		}
		*to = net.JoinHostPort(host, number)
		return setting + ": " + *to, nil
	}
}

// seconds reads a number of seconds into a time.
func seconds(setting string, at func(*Config) *time.Duration) func(*foreign, []string) (string, error) {
	return func(f *foreign, values []string) (string, error) {
		n, err := strconv.ParseFloat(strings.Join(values, ""), 64)
		if err != nil || !(n >= 0 && n < 1e9) {
			return "", fmt.Errorf("%q is not a number of seconds", strings.Join(values, ""))
		}
		*at(f.Config) = time.Duration(n * float64(time.Second))
		return fmt.Sprintf("%s: %v", setting, *at(f.Config)), nil
	}
}

// wholeTo reads a whole number.
func wholeTo[T int | int64](setting string, at func(*Config) *T) func(*foreign, []string) (string, error) {
	return func(f *foreign, values []string) (string, error) {
		n, err := wholeNumber(values)
		if err != nil {
			return "", err
		}
		*at(f.Config) = T(n)
		return fmt.Sprintf("%s: %d", setting, *at(f.Config)), nil
	}
}

func wholeNumber(values []string) (int, error) {
	n, err := strconv.Atoi(strings.Join(values, ""))
	if err != nil || n < 0 || int64(n) > 1<<52 {
		return 0, fmt.Errorf("%q is not a whole number of 0 or more", strings.Join(values, ""))
	}
	return n, nil
}

// constant sets something that has no value on the command line.
func constant(setting string, set func(*Config)) func(*foreign, []string) (string, error) {
	return func(f *foreign, _ []string) (string, error) {
		set(f.Config)
		return setting, nil
	}
}

func secondsText(value string) (string, error) {
	if n, err := strconv.ParseFloat(value, 64); err != nil || !(n >= 0) {
		return "", fmt.Errorf("%q is not a number of seconds", value)
	}
	return value + "s", nil
}

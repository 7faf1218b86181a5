package config

import (
	_ "embed"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/admin"
	"github.com/warmpath/warmpath/internal/discovery"
	"github.com/warmpath/warmpath/internal/gateway"
	"github.com/warmpath/warmpath/internal/ingest"
	"github.com/warmpath/warmpath/internal/proxy"
	"github.com/warmpath/warmpath/internal/queue"
	"github.com/warmpath/warmpath/internal/telemetry"
	"github.com/warmpath/warmpath/internal/tokens"
	"github.com/warmpath/warmpath/internal/tokens/inprocess"
	"github.com/warmpath/warmpath/kvindex"
	"github.com/warmpath/warmpath/policy"
)

// Config is everything that `warmpath serve` can be told. Start from Default.
type Config struct {
	// Listen is where clients ask: host:port of the model API, /health and /readiness. All addresses by default, as a
	// gateway is there to be reached.
	Listen string `yaml:"listen"`
	// Policy chooses the worker: the name of a type of policy or of one of policies; or the policy itself, as type:
	// NAME and its parameters. All that is said of policies can be changed by a reload.
	Policy string `yaml:"policy"`
	// Policies are policies with parameters other than their defaults: type, the parameters, and a name where there
	// is more than one of a type. What each type can be told, with its defaults (docs/policies/ says what for):
	Policies []Policy `yaml:"policies"`
	// ModelPolicies are the policies of models that have another than policy: MODEL: NAME. A base model's counts for
	// its adapters too.
	ModelPolicies map[string]string `yaml:"model_policies"`
	// RequestPolicies are the names of policies that a request may ask for by header (docs/api.md). None by default:
	// what one client asks for costs the others time.
	RequestPolicies []string `yaml:"request_policies"`
	// Shadow is a policy that is asked beside the one that decides, to see where it would decide otherwise: it
	// changes nothing. ShadowSample is the share of the requests that it is asked about, 0 to 1. Empty: none.
	Shadow       string  `yaml:"shadow"`
	ShadowSample float64 `yaml:"shadow_sample"`
	// Workers are the engines. A URL is enough where the engine tells its event endpoints; else events and replay say
	// them, "*" standing for the worker's host. Of a worker's data-parallel ranks the first 8 get requests; ranks says
	// another number, up to 256. api_key is for an engine that wants one: it is sent with what the router asks, clients
	// send their own. Of labels, hardware says which workers are alike, node and zone are for the locality filter. A
	// reload can change them. A reload refuses a file without the key workers, as the file may be cut short; an empty
	// list removes all workers.
	Workers []discovery.Target `yaml:"workers"`
	// Admin is the second listener: metrics, workers, decisions, explain, reload.
	Admin admin.Config `yaml:"admin"`
	// Routing tunes the decision.
	Routing Routing `yaml:"routing"`
	// Models are where models' files are, so that their prompts become token ids in this process: exactly, in
	// microseconds, and without asking an engine. Of other models the files are looked for (tokens.discover), and
	// where they are not found the engines are asked.
	Models []inprocess.Path `yaml:"models"`
	// Hub is whether models' files may be downloaded, and from where.
	Hub inprocess.HubConfig `yaml:"hub"`
	// Tokens bounds the search for a prompt's token ids.
	Tokens tokens.Config `yaml:"tokens"`
	// Index bounds the memory of what workers hold.
	Index kvindex.Config `yaml:"index"`
	// Events is how the engines' KV events are followed.
	Events ingest.Config `yaml:"events"`
	// Gateway is how clients are treated.
	Gateway gateway.Config `yaml:"gateway"`
	// Queue is whether requests wait for a worker when all are saturated, and in which order.
	Queue queue.Config `yaml:"queue"`
	// Body bounds request bodies.
	Body proxy.BodyConfig `yaml:"body"`
	// Proxy is how workers are talked to.
	Proxy proxy.Config `yaml:"proxy"`
	// Health is active health: how workers are checked and probed.
	Health discovery.Config `yaml:"health"`
	// Reports is how often workers are asked how busy they are, which shows what others than this router sent there.
	Reports discovery.ReportsConfig `yaml:"reports"`
	// Breaker is passive health: what failed requests do to a worker.
	Breaker fleet.BreakerConfig `yaml:"breaker"`
	// Telemetry is what is remembered and logged.
	Telemetry telemetry.Config `yaml:"telemetry"`
}

// Routing tunes how a worker is chosen.
type Routing struct {
	// TierWeights are the worth of a matched token by where its block lies, 0 to 1. A block on the GPU costs nothing,
	// one in host memory a copy; disk and remote storage win over a worker that has nothing, not over one that has
	// half.
	TierWeights policy.TierWeights `yaml:"tier_weights"`
	// ImbalanceTokens bounds how far kv_aware follows a match: a worker gives way when its work and the request's
	// uncached tokens there exceed the least such sum in the fleet by more. 0 is no bound: then all conversations
	// that share a system prompt go to its first holder, however busy it is. 2048 is one small engine step: below it
	// there is no queue.
	ImbalanceTokens int `yaml:"imbalance_tokens"`
	// SpeculativeTTL is how long a dispatched prompt counts as cached before its events confirm it. Well above the time
	// from dispatch to event, and soon over when the request failed.
	SpeculativeTTL time.Duration `yaml:"speculative_ttl"`
	// ApproximateTTL is the same for workers that publish no events: about how long a prefix survives on a busy engine.
	ApproximateTTL time.Duration `yaml:"approximate_ttl"`
	// BlockSize is the tokens of our own blocks. 0 takes, for each model, the smallest engine block among its
	// workers, at least 16; that is also the most: a larger one gives way to it, with a warning, as it would hide
	// what engines have.
	BlockSize int `yaml:"block_size"`
	// BlockSizes are the tokens of an engine block by base model, MODEL: TOKENS, for engines that report none or a wrong
	// one. What probes and events report of such a model is not used. None by default: engines report it themselves.
	BlockSizes map[string]int `yaml:"block_sizes"`
	// BlockKeys is the hash that names our own blocks: xxh3, or fnv1a, the chained FNV-1a of an index that another
	// program makes or reads. Both route alike; xxh3 is the default, as it takes a third of the time.
	BlockKeys string `yaml:"block_keys"`
	// MaxRequests is how many requests a holder may have at once before it counts as saturated. 0 is no limit: engines
	// queue by themselves.
	MaxRequests int `yaml:"max_requests"`
}

// Default returns the configuration of an empty file. It has no workers.
func Default() Config {
	return Config{
		Listen:          ":8080",
		Policy:          "marginal",
		Policies:        []Policy{},
		ModelPolicies:   map[string]string{},
		RequestPolicies: []string{},
		ShadowSample:    1,
		Models:          []inprocess.Path{},
		Admin:           admin.DefaultConfig(),
		Routing: Routing{
			TierWeights:     policy.DefaultLongestMatch().TierWeights,
			ImbalanceTokens: policy.DefaultImbalanceTokens,
			SpeculativeTTL:  2 * time.Second,
			ApproximateTTL:  2 * time.Minute,
			BlockSizes:      map[string]int{},
			BlockKeys:       block.XXH3.String(),
		},
		Tokens:    tokens.DefaultConfig(),
		Index:     kvindex.DefaultConfig(),
		Events:    ingest.DefaultConfig(),
		Gateway:   gateway.DefaultConfig(),
		Queue:     queue.DefaultConfig(),
		Body:      proxy.DefaultBodyConfig(),
		Proxy:     proxy.DefaultConfig(),
		Health:    discovery.DefaultConfig(),
		Reports:   discovery.DefaultReportsConfig(),
		Breaker:   fleet.DefaultBreakerConfig(),
		Telemetry: telemetry.DefaultConfig(),
	}
}

// Options returns what the Router is made of, but its fleet.
func (c *Config) Options() warmpath.Options {
	algorithm, _ := block.ParseAlgorithm(c.Routing.BlockKeys) // Validate has checked it
	return warmpath.Options{
		Algorithm:      algorithm,
		Policy:         c.Spec(),
		Policies:       c.specs(),
		Shadow:         c.Shadow,
		ModelPolicies:  c.ModelPolicies,
		Index:          c.Index,
		BlockSize:      c.Routing.BlockSize,
		SpeculativeTTL: orOff(c.Routing.SpeculativeTTL),
		ApproximateTTL: orOff(c.Routing.ApproximateTTL),
		MaxRequests:    c.Routing.MaxRequests,
	}
}

// orOff turns the file's 0, which means off, into the Router's negative, as its own 0 means the default.
func orOff(d time.Duration) time.Duration {
	if d == 0 {
		return -1
	}
	return d
}

// problem is one thing that is wrong, with the key it is wrong at.
type problem struct {
	path string
	err  error
	// other is a second key that is at fault; it gives the place when the first does not stand in the file.
	other string
}

func (p *problem) Error() string { return p.path + ": " + p.err.Error() }
func (p *problem) Unwrap() error { return p.err }

// Validate returns all problems of c, each beginning with the path of its key.
func (c *Config) Validate() error {
	var found problems
	c.validate(&found)
	var all []error
	for _, p := range found {
		all = append(all, p)
	}
	return errors.Join(all...)
}

func (c *Config) validate(found *problems) {
	c.validateAddresses(found)
	c.validatePolicies(found)
	c.validateModels(found)
	c.validateRouting(found)
	c.validateHealth(found)
	c.validateIO(found)
	found.section("reports", c.Reports.Validate())
	found.section("queue", c.Queue.Validate())
	found.section("admin", c.Admin.Validate())
	found.section("tokens", c.Tokens.Validate())
	found.section("gateway", c.Gateway.Validate())
	found.section("telemetry", c.Telemetry.Validate())
}

// validateModels checks that the models' files exist, and that several models have names, each its own.
func (c *Config) validateModels(found *problems) {
	if c.Hub.Endpoint != "" {
		found.when("hub.endpoint", httpURL(c.Hub.Endpoint))
	}
	first := map[string]int{}
	for i, m := range c.Models {
		at := fmt.Sprintf("models[%d]", i)
		found.when(at+".path", m.Check(c.Hub.Allow))
		other, twice := first[m.Name]
		switch {
		case m.Name == "" && len(c.Models) > 1:
			found.add(at, errors.New("with several models each needs its name"))
		case twice:
			found.add(at+".name", fmt.Errorf("%s is models[%d], too", m.Name, other))
		}
		first[m.Name] = i
	}
}

func (c *Config) validateRouting(found *problems) {
	r := c.Routing
	found.section("routing.tier_weights", r.TierWeights.Validate())
	if r.TierWeights == (policy.TierWeights{}) {
		found.add("routing.tier_weights", errors.New("all weights are 0: nothing would ever match"))
	}
	if r.BlockSize < 0 || r.BlockSize > block.MaxSize {
		found.add("routing.block_size", fmt.Errorf("%d is outside 0..%d", r.BlockSize, block.MaxSize))
	}
	for model, size := range r.BlockSizes {
		if size < 1 || size > block.MaxSize {
			found.add("routing.block_sizes."+model, fmt.Errorf("%d is outside 1..%d", size, block.MaxSize))
		}
	}
	_, err := block.ParseAlgorithm(r.BlockKeys)
	found.when("routing.block_keys", err)
	found.atLeast("routing.imbalance_tokens", int64(r.ImbalanceTokens), 0)
	found.atLeast("routing.max_requests", int64(r.MaxRequests), 0)
	found.notNegative("routing.speculative_ttl", r.SpeculativeTTL)
	found.notNegative("routing.approximate_ttl", r.ApproximateTTL)
}

func (c *Config) validateHealth(found *problems) {
	h, b := c.Health, c.Breaker
	found.positive("health.interval", h.Interval)
	found.positive("health.timeout", h.Timeout)
	found.positive("health.refresh", h.Refresh)
	found.positive("health.retry", h.Retry)
	if h.Misses < 1 {
		found.add("health.misses", fmt.Errorf("%d is below 1", h.Misses))
	}
	if b.Failures < 1 {
		found.add("breaker.failures", fmt.Errorf("%d is below 1", b.Failures))
	}
	found.positive("breaker.delay", b.Delay)
	found.positive("breaker.trial", b.Trial)
	if b.MaxDelay < b.Delay {
		found.add("breaker.max_delay", fmt.Errorf("%v is below delay, %v", b.MaxDelay, b.Delay))
	}
}

func (c *Config) validateIO(found *problems) {
	p := c.Proxy
	found.positive("proxy.connect_timeout", p.ConnectTimeout)
	found.notNegative("proxy.header_timeout", p.HeaderTimeout)
	found.notNegative("proxy.stream_idle_timeout", p.StreamIdleTimeout)
	found.notNegative("proxy.client_timeout", p.ClientTimeout)
	found.atLeast("proxy.idle_per_worker", int64(p.IdlePerWorker), 0)
	found.positive("proxy.idle_timeout", p.IdleTimeout)
	for i, status := range p.RetryStatuses {
		if status < 400 || status > 599 {
			found.add(fmt.Sprintf("proxy.retry_statuses[%d]", i), fmt.Errorf("%d is outside 400..599: no other status means that a worker failed", status))
		}
	}
	for i, text := range p.RetryTexts {
		if text == "" {
			found.add(fmt.Sprintf("proxy.retry_texts[%d]", i), errors.New("must not be empty: every answer contains the empty text"))
		}
	}
	found.atLeast("proxy.max_header_bytes", int64(p.MaxHeaderBytes), 4096)
	found.atLeast("proxy.max_headers", int64(p.MaxHeaders), 16)
	found.atLeast("body.max_bytes", c.Body.MaxBytes, 1024)
	found.notNegative("body.stall_timeout", c.Body.StallTimeout)
	found.notNegative("body.timeout", c.Body.Timeout)
	found.atLeast("index.bytes", c.Index.Bytes, 1<<20)
	found.atLeast("index.max_waiting", int64(c.Index.MaxWaiting), 1)
	found.atLeast("index.waiting_bytes", c.Index.WaitingBytes, 0)
	found.atLeast("index.max_speculative", int64(c.Index.MaxSpeculative), 1)
	found.positive("events.silence", c.Events.Silence)
	found.positive("events.grace", c.Events.Grace)
	found.positive("events.unremoved_ttl", c.Events.UnremovedTTL)
	found.atLeast("events.silence_requests", int64(c.Events.SilenceRequests), 1)
}

// problems gathers what is wrong.
type problems []*problem

func (p *problems) add(path string, err error) { *p = append(*p, &problem{path: path, err: err}) }

// when adds err, unless it is nil.
func (p *problems) when(path string, err error) {
	if err != nil {
		p.add(path, err)
	}
}

func (p *problems) positive(path string, d time.Duration) {
	if d <= 0 {
		p.add(path, fmt.Errorf("%v is not positive", d))
	}
}

func (p *problems) notNegative(path string, d time.Duration) {
	if d < 0 {
		p.add(path, fmt.Errorf("%v is negative", d))
	}
}

func (p *problems) atLeast(path string, n, least int64) {
	if n < least {
		p.add(path, fmt.Errorf("%d is below %d", n, least))
	}
}

// section adds the problems of a component's own Validate, each of which begins with its key.
func (p *problems) section(name string, err error) {
	if err == nil {
		return
	}
	list := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		list = joined.Unwrap()
	}
	for _, e := range list {
		key, rest, ok := strings.Cut(e.Error(), ": ")
		if !ok {
			p.add(name, e)
			continue
		}
		p.add(name+"."+key, errors.New(rest))
	}
}

//go:embed config.sample.yaml
var sample string

// Sample returns a file with every key at its default, each with its reason.
func Sample() string { return sample }

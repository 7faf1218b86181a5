package config

import (
	_ "embed"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/admin"
	"github.com/warmpath/warmpath/internal/discovery"
	"github.com/warmpath/warmpath/internal/gateway"
	"github.com/warmpath/warmpath/internal/indexer"
	"github.com/warmpath/warmpath/internal/network"
	"github.com/warmpath/warmpath/internal/proxy"
	"github.com/warmpath/warmpath/internal/queue"
	"github.com/warmpath/warmpath/internal/replica"
	"github.com/warmpath/warmpath/internal/sharedindex"
	"github.com/warmpath/warmpath/internal/snapshot"
	"github.com/warmpath/warmpath/internal/telemetry"
	"github.com/warmpath/warmpath/internal/tenant"
	"github.com/warmpath/warmpath/internal/tokens"
	"github.com/warmpath/warmpath/internal/tokens/inprocess"
	"github.com/warmpath/warmpath/kvfeed"
	"github.com/warmpath/warmpath/kvindex"
	"github.com/warmpath/warmpath/policy"
)

// Config has all settings of `warmpath serve`. Start from Default.
type Config struct {
	// Listen is the address for clients, host:port. It serves the model API, /health and /readiness. By default the
	// router listens on all addresses, because clients have to reach a gateway.
	Listen string `yaml:"listen"`
	// Policy is the policy that chooses the worker: the name of a type of policy, or of an entry of policies. It may
	// also be a whole policy, as type: NAME and its parameters. A reload applies changes of all settings of policies.
	Policy string `yaml:"policy"`
	// Policies are policies with parameters that differ from their defaults. An entry has a type, parameters, and a
	// name if there is more than one entry of the type. The sample file lists the parameters of each type with their
	// defaults; docs/policies/ explains them.
	Policies []Policy `yaml:"policies"`
	// ModelPolicies are exceptions from policy for single models, as MODEL: NAME. The policy of a base model is also
	// the policy of its adapters.
	ModelPolicies map[string]string `yaml:"model_policies"`
	// ModelAliases are further names of models, as NAME: MODEL. A request that names NAME goes to MODEL: only its
	// member model changes. An alias comes before a model of the same name. A reload applies changes.
	ModelAliases map[string]string `yaml:"model_aliases"`
	// ModelFallbacks are models that take the requests of another model while it cannot, as MODEL: LIST, in order:
	// while no worker of MODEL can take requests, when the queue takes no more requests for MODEL, and when all
	// attempts at its workers failed. A list has at most 8 models, and no aliases. A reload applies changes.
	ModelFallbacks map[string][]string `yaml:"model_fallbacks"`
	// Adapters are LoRA adapters that workers load when a request names them, as {name: NAME, base: MODEL, path: PATH}.
	// MODEL is the base model, and PATH is the place of the files as the engines see it (docs/adapters.md). An adapter
	// that the engines have from their start needs no entry. A reload applies changes of this and of the next two
	// settings.
	Adapters []gateway.Adapter `yaml:"adapters"`
	// AdapterSlots is the greatest number of adapters that a worker may have loaded. 0 means the number that the engine
	// reports, or 4 if it reports none. If no slot is free, the router unloads an adapter that no request uses.
	AdapterSlots int `yaml:"adapter_slots"`
	// AdapterTimeout is how long a worker may take to load or unload an adapter.
	AdapterTimeout time.Duration `yaml:"adapter_timeout"`
	// RequestPolicies are the names of policies that a request may choose by a header (docs/api.md). By default there
	// are none, because the choice of one client can slow down the other clients.
	RequestPolicies []string `yaml:"request_policies"`
	// Shadow is a policy whose decisions have no effect. The metrics compare them with the decisions of the policy that
	// decides. Empty means no shadow. ShadowSample is the share of the requests about which the shadow is asked, 0 to
	// 1.
	Shadow       string  `yaml:"shadow"`
	ShadowSample float64 `yaml:"shadow_sample"`
	// ServiceLevels are limits of time that answers should keep; a list has at most 4 levels, in any order. first_token
	// limits the time from the arrival of the request to the first token, and per_token the mean time of each further
	// token. Without per_token a level limits only the first token. The default policy marginal weighs the risk that an
	// answer breaks a level, and the metrics count the answers that keep and break each level. With an empty list,
	// marginal weighs time alone. The default is a loose level and a strict level that are usual for chats. A reload
	// applies changes of all settings of service levels.
	ServiceLevels []fleet.ServiceLevel `yaml:"service_levels"`
	// ModelServiceLevels are exceptions from service_levels for single models, as MODEL: LIST. The levels of a base
	// model are also the levels of its adapters.
	ModelServiceLevels map[string][]fleet.ServiceLevel `yaml:"model_service_levels"`
	// TenantServiceLevels are exceptions for single tenants, as TENANT: LIST. They come before the levels of models.
	// They need gateway.tenant_header, because tenants have no names without it.
	TenantServiceLevels map[string][]fleet.ServiceLevel `yaml:"tenant_service_levels"`
	// RequestServiceLevels allows requests to choose their service levels by a header (docs/api.md). The default is
	// false, because stricter levels of one client can slow down the other clients.
	RequestServiceLevels bool `yaml:"request_service_levels"`
	// TLS names the files for TLS at the address for clients. By default clients speak HTTP without TLS. With TLS they
	// may use HTTP/1.1 and HTTP/2. The admin listener has files of its own (admin.tls).
	TLS network.ListenerTLS `yaml:"tls"`
	// WatchInterval is how often the router looks whether this file or a file that it names has changed. It then
	// reloads, as after SIGHUP, once the files have not changed for one interval. A file with an error changes nothing.
	// 2 s is soon enough for people, and a look costs microseconds. 0: only SIGHUP and POST /admin/reload reload.
	WatchInterval time.Duration `yaml:"watch_interval"`
	// Tenants are the clients that may use the gateway. Without tenants the gateway is open: it checks no key. With
	// tenants, a request without a known key is answered 401. keys_sha256 has the SHA-256 of each API key in hex, as
	// printf %s KEY | sha256sum prints it. All limits are optional: requests_per_second and burst, max_concurrent,
	// tokens_per_minute (prompts and answers). A star in models stands for any text, and no models means all.
	// default_model is for requests that name no model. priority is for queue.order priority. cache_salt own keeps the
	// tenant's cached prompts apart from other tenants' (docs/tenants.md). A reload applies changes. A reload refuses a
	// file without the key tenants while tenants are in force; [] opens the gateway.
	Tenants []tenant.Config `yaml:"tenants"`
	// TenantsFile is a file with further tenants, for lists that are too long for this file: one JSON object a line,
	// with the same keys. It can have 100,000 tenants and more. A reload reads it again.
	TenantsFile string `yaml:"tenants_file"`
	// TenantSaltKeyFile is a file with the secret from which the salts of tenants with cache_salt own are made. The
	// environment variable WARMPATH_TENANT_SALT_KEY overrides it. All replicas need the same secret. With a new secret
	// these tenants' cached prompts are no longer found.
	TenantSaltKeyFile string `yaml:"tenant_salt_key_file"`
	// JWT says which tokens (JWT of an OpenID Connect issuer) name a tenant, beside API keys.
	JWT tenant.TokenConfig `yaml:"jwt"`
	// AllTenants are the tenants of the list and of TenantsFile; TenantSaltKey is the secret.
	AllTenants    []tenant.Config `yaml:"-"`
	TenantSaltKey string          `yaml:"-"`
	// Workers are the engines. A URL is enough if the engine reports its event endpoints. Otherwise events and replay
	// are the endpoints; in them, "*" stands for the worker's host. The first 8 data-parallel ranks of a worker get
	// requests; ranks sets another number, up to 256. api_key (or api_key_file, or api_key_env with the name of an
	// environment variable) is sent with the router's own questions to an engine that requires a key; clients send
	// their own keys. api_key_use: missing also sends it for clients without a key, and always in place of every
	// client's key. tls has ca_file, cert_file, key_file and server_name for https. protocol is auto, http1 or http2. A
	// URL may also be unix:// and the path of a socket. labels: workers with the same label hardware share their
	// timing, and the locality filter reads node and zone. role is prefill, decode or both, and connector names how the
	// engine exchanges KV blocks, with transfer_host, transfer_port, engine_id, tensor_parallel and kv_bytes_per_token
	// (docs/configure.md); the router asks the engine for what is not set. A reload applies changes of the workers. A
	// reload refuses a file without the key workers, because such a file may be cut short; an empty list removes all
	// workers.
	Workers []discovery.Target `yaml:"workers"`
	// WorkersFile is a file with further workers, for lists that a program writes: a list under the key workers, as in
	// this file. It is watched as this file is. A worker that is no longer in the file gets no new requests, and leaves
	// when its requests have ended, or after 5 minutes. Empty: there is no such file.
	WorkersFile string `yaml:"workers_file"`
	// FileWorkers are the workers of WorkersFile.
	FileWorkers []discovery.Target `yaml:"-"`
	// WorkersDNS are DNS names: each address that a name has is a worker. Workers join and leave with the answers. A
	// worker that is no longer in the answers gets no new requests, and leaves when its requests have ended. While a
	// name has no answer, the workers of its last answer stay. A change needs a restart.
	WorkersDNS discovery.DNSConfig `yaml:"workers_dns"`
	// WorkerDefaults are the defaults of all workers, those of the admin API included: api_key (or api_key_file, or
	// api_key_env), api_key_use, protocol, and tls for https workers. A worker's own settings have precedence; a worker
	// with files of its own for TLS uses none of the defaults' files. A reload applies changes.
	WorkerDefaults discovery.Defaults `yaml:"worker_defaults"`
	// Admin is the second listener. It serves metrics, workers, decisions, explain and reload.
	Admin admin.Config `yaml:"admin"`
	// Routing tunes how a worker is chosen.
	Routing Routing `yaml:"routing"`
	// Disaggregation says when the prompt of a request is computed at one worker (prefill), and its answer is generated
	// at another (decode), which receives the KV blocks (docs/prefill-decode.md). It counts only for workers that
	// exchange KV blocks: those with a connector. A reload applies changes.
	Disaggregation Disaggregation `yaml:"disaggregation"`
	// Models are the folders of models' files. With these files the router makes the token ids of prompts in its own
	// process: exactly, in microseconds, and without asking an engine. The router searches for the files of other
	// models (tokens.discover). If it does not find them, it asks the engines.
	Models []inprocess.Path `yaml:"models"`
	// Hub says whether models' files may be downloaded, and from which address.
	Hub inprocess.HubConfig `yaml:"hub"`
	// Tokens bounds the time and the memory that finding the token ids of prompts may take.
	Tokens tokens.Config `yaml:"tokens"`
	// Index bounds the memory of the index, which knows the cached blocks of the workers, or says which index service is
	// asked instead (docs/index-service.md).
	Index Index `yaml:"index"`
	// IndexService offers the index to other routers and programs (docs/index-service.md): `warmpath index` does nothing
	// else, and `warmpath serve` can do it, too.
	IndexService indexer.Config `yaml:"index_service"`
	// Events are the settings for the engines' KV events.
	Events kvfeed.Config `yaml:"events"`
	// Gateway are the settings for clients and their requests.
	Gateway gateway.Config `yaml:"gateway"`
	// Queue says whether requests wait when all workers are saturated, and in which order.
	Queue queue.Config `yaml:"queue"`
	// Body bounds request bodies.
	Body proxy.BodyConfig `yaml:"body"`
	// Proxy are the settings for connections to workers.
	Proxy proxy.Config `yaml:"proxy"`
	// Health are the settings for active health: the checks and probes of workers.
	Health discovery.Config `yaml:"health"`
	// Reports are the settings for questions to workers about their load. The answers also contain the load of other
	// routers and clients.
	Reports discovery.ReportsConfig `yaml:"reports"`
	// Breaker are the settings for passive health: when failed requests block a worker.
	Breaker fleet.BreakerConfig `yaml:"breaker"`
	// Sync says how several routers in front of the same workers tell each other of their requests, so that they place as
	// one router would (docs/replicas.md). By default a router tells nobody. A change needs a restart.
	Sync replica.Config `yaml:"sync"`
	// Telemetry are the settings for logs and remembered decisions.
	Telemetry telemetry.Config `yaml:"telemetry"`
}

// WarmStart is another name of the settings of a warm start: Index embeds two types, and both are called Config.
type WarmStart = snapshot.Config

// Index bounds the memory of one model's index, and of the prompts that the router expects in caches. It also has the
// settings of a warm start.
type Index struct {
	kvindex.Config
	WarmStart
	// MaxSpeculative is how many pairs of a holder and a block may be expected because a prompt was sent. These pairs
	// are kept outside the index. Default 1 M: two minutes of requests to holders without events, at 100 requests of 80
	// new blocks a second.
	MaxSpeculative int `yaml:"max_speculative"`
	indexer.ClientConfig
	// Backend says where the index is. memory: in this process. valkey: in a Valkey or Redis server, for many routers
	// (docs/shared-index.md).
	Backend string `yaml:"backend"`
	// Valkey is the server of the backend valkey.
	Valkey sharedindex.Config `yaml:"valkey"`
}

// The values of Index.Backend.
const (
	BackendMemory = "memory"
	BackendValkey = "valkey"
)

// ReadsShared reports whether this process has no index of its own, and reads the shared one.
func (i *Index) ReadsShared() bool { return i.Backend == BackendValkey && !i.Valkey.Write }

// Elsewhere reports whether this process uses a remote index.
func (i *Index) Elsewhere() bool { return i.URL != "" || i.ReadsShared() }

// LookupTimeout is how long a request waits for a remote index.
func (i *Index) LookupTimeout() time.Duration {
	if i.ReadsShared() {
		return i.Valkey.Timeout
	}
	return i.MaxWait
}

// WritesShared reports whether this process mirrors its own index into the shared one.
func (i *Index) WritesShared() bool { return i.Backend == BackendValkey && i.Valkey.Write }

// validateIndex finds settings of the index that contradict each other.
func (c *Config) validateIndex(found *problems) {
	c.Index.validate(found)
	c.validateIndexOff(found)
	if !c.Index.Elsewhere() {
		return
	}
	const none = "this router has no index of its own, because of index.url or index.backend: "
	if c.Events.Listen != "" {
		found.add("events.listen", errors.New(none+"engines must connect to the process that follows their events"))
	}
	if c.IndexService.Listen != "" {
		found.add("index_service.listen", errors.New(none+"it has none to offer"))
	}
	if len(c.Index.Peers) > 0 || c.Index.SnapshotFile != "" {
		found.add("index", errors.New(none+"remove index.peers and index.snapshot_file, or set them where the index is"))
	}
}

func (i *Index) validate(found *problems) {
	found.section("index", i.WarmStart.Validate())
	found.section("index", i.ClientConfig.Validate())
	switch i.Backend {
	case BackendValkey:
		found.section("index.valkey", i.Valkey.Validate())
	case BackendMemory:
	default:
		found.add("index.backend", fmt.Errorf("%q is not known: use %s or %s", i.Backend, BackendMemory, BackendValkey))
	}
	if i.URL != "" && i.Backend == BackendValkey {
		found.add("index.url", errors.New("with index.backend: valkey the index is in Valkey: keep one of the two"))
	}
}

// Routing tunes how a worker is chosen.
type Routing struct {
	// TierWeights are the value of a matched token, 0 to 1, by the tier of its block. A block on the GPU costs nothing,
	// and a block in host memory costs a copy. By default a match on disk or in remote storage is worth more than no
	// match, but less than half of the match on a GPU.
	TierWeights policy.TierWeights `yaml:"tier_weights"`
	// ImbalanceTokens bounds how much extra work kv_aware accepts for a match. Each worker has a sum: its work plus the
	// tokens of the request that it does not have cached. kv_aware does not choose a worker whose sum exceeds the
	// smallest sum in the fleet by more than this bound. 0 is no bound: all conversations with the same system prompt
	// go to the first holder of this prompt, however busy the holder is. The default 2048 is one small engine step;
	// with a smaller difference no queue builds up.
	ImbalanceTokens int `yaml:"imbalance_tokens"`
	// SpeculativeTTL is how long a prompt that was sent counts as cached until events confirm it. 2 s is much more than
	// the time from sending to the event. It is also short enough for a request that fails: its prompt counts as cached
	// for only 2 s.
	SpeculativeTTL time.Duration `yaml:"speculative_ttl"`
	// ApproximateTTL is how long a prompt that was sent counts as cached at a worker that publishes no events. The
	// default is about the time that a prefix stays in the cache of a busy engine.
	ApproximateTTL time.Duration `yaml:"approximate_ttl"`
	// BlockSize is the size of the router's own blocks, in tokens. 0 means the smallest engine block among a model's
	// workers, but at least 16. A value above the smallest engine block would hide cached blocks, so the router then
	// logs a warning and uses the smallest engine block.
	BlockSize int `yaml:"block_size"`
	// BlockSizes are the sizes of engine blocks in tokens by base model, as MODEL: TOKENS. They replace the sizes that
	// probes and events report. They are for engines that report no size or a wrong size. By default there are none.
	BlockSizes map[string]int `yaml:"block_sizes"`
	// BlockKeys is the hash function for the keys of the router's own blocks. Both functions give the same routing. The
	// default xxh3 takes a third of the time of fnv1a (chained FNV-1a). fnv1a is for comparisons with a program that
	// computes such keys.
	BlockKeys string `yaml:"block_keys"`
	// MaxRequests is the number of simultaneous requests at which a holder counts as saturated. The default 0 is no
	// limit, because engines have their own queues.
	MaxRequests int `yaml:"max_requests"`
}

// Default returns the configuration of an empty file. It has no workers.
func Default() Config {
	return Config{
		Listen:              ":8080",
		WatchInterval:       2 * time.Second,
		Policy:              "marginal",
		JWT:                 tenant.DefaultTokenConfig(),
		Policies:            []Policy{},
		ModelPolicies:       map[string]string{},
		ModelAliases:        map[string]string{},
		ModelFallbacks:      map[string][]string{},
		Adapters:            []gateway.Adapter{},
		AdapterTimeout:      time.Minute,
		RequestPolicies:     []string{},
		ShadowSample:        1,
		ServiceLevels:       fleet.DefaultServiceLevels(),
		ModelServiceLevels:  map[string][]fleet.ServiceLevel{},
		TenantServiceLevels: map[string][]fleet.ServiceLevel{},
		Models:              []inprocess.Path{},
		WorkersDNS:          discovery.DefaultDNSConfig(),
		Admin:               admin.DefaultConfig(),
		Routing: Routing{
			TierWeights:     policy.DefaultKVAware().TierWeights,
			ImbalanceTokens: policy.DefaultImbalanceTokens,
			SpeculativeTTL:  2 * time.Second,
			ApproximateTTL:  2 * time.Minute,
			BlockSizes:      map[string]int{},
			BlockKeys:       block.XXH3.String(),
		},
		Disaggregation: DefaultDisaggregation(),

		Tokens: tokens.DefaultConfig(),
		Index: Index{Config: kvindex.DefaultConfig(), WarmStart: snapshot.DefaultConfig(), MaxSpeculative: warmpath.DefaultMaxSpeculative, ClientConfig: indexer.DefaultClientConfig(),
			Backend: BackendMemory, Valkey: sharedindex.DefaultConfig()},
		Events:    kvfeed.DefaultConfig(),
		Gateway:   gateway.DefaultConfig(),
		Queue:     queue.DefaultConfig(),
		Body:      proxy.DefaultBodyConfig(),
		Proxy:     proxy.DefaultConfig(),
		Health:    discovery.DefaultConfig(),
		Reports:   discovery.DefaultReportsConfig(),
		Breaker:   fleet.DefaultBreakerConfig(),
		Sync:      replica.DefaultConfig(),
		Telemetry: telemetry.DefaultConfig(),
	}
}

// Options returns the Router's options for c. The caller adds the fleet.
func (c *Config) Options() warmpath.Options {
	algorithm, _ := block.ParseAlgorithm(c.Routing.BlockKeys) // Validate has checked that the name is valid
	return warmpath.Options{
		Algorithm:      algorithm,
		Policy:         c.Spec(),
		Policies:       c.specs(),
		Shadow:         c.Shadow,
		Legs:           c.Disaggregation.legs(),
		ModelPolicies:  c.ModelPolicies,
		Index:          c.Index.Config,
		RemoteIndex:    c.Index.Elsewhere(),
		MaxSpeculative: c.Index.MaxSpeculative,
		BlockSize:      c.Routing.BlockSize,
		SpeculativeTTL: orOff(c.Routing.SpeculativeTTL),
		ApproximateTTL: orOff(c.Routing.ApproximateTTL),
		MaxRequests:    c.Routing.MaxRequests,
	}
}

// Differing returns the paths of the settings that differ between c and other, such as routing.block_keys. A list and a
// map are one setting each.
func (c *Config) Differing(other *Config) []string {
	return differing(reflect.ValueOf(*c), reflect.ValueOf(*other), "")
}

func differing(a, b reflect.Value, under string) []string {
	var paths []string
	for _, f := range reflect.VisibleFields(a.Type()) {
		key, x, y := fieldKey(f), a.FieldByIndex(f.Index), b.FieldByIndex(f.Index)
		switch {
		case key == "" || reflect.DeepEqual(x.Interface(), y.Interface()):
		case f.Type.Kind() == reflect.Struct:
			paths = append(paths, differing(x, y, under+key+".")...)
		default:
			paths = append(paths, under+key)
		}
	}
	return paths
}

// orOff translates a duration of the file for the Router. 0 means off in the file; in the Router 0 means the default,
// and a negative value means off.
func orOff(d time.Duration) time.Duration {
	if d == 0 {
		return -1
	}
	return d
}

// problem is one mistake that Validate found.
type problem struct {
	path string // path of the key
	err  error
	// other is the path of a second key that takes part in the mistake. If the file does not contain path, the error
	// has the position of other.
	other string
	// certain: the problem cannot follow from a value that could not be read.
	certain bool
}

func (p *problem) Error() string { return p.path + ": " + p.err.Error() }
func (p *problem) Unwrap() error { return p.err }

// Validate returns all problems of c. Each problem begins with the path of its key.
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
	c.validateLevels(found)
	c.validateModelNames(found)
	c.validateAdapters(found)
	c.validateTenants(found)
	found.notNegative("watch_interval", c.WatchInterval)
	found.section("tls", c.TLS.Validate())
	c.validateModels(found)
	c.validateRouting(found)
	c.Disaggregation.validate(found)
	c.validateHealth(found)
	c.validateIO(found)
	found.section("workers_dns", c.WorkersDNS.Validate())
	found.section("reports", c.Reports.Validate())
	found.section("queue", c.Queue.Validate())
	found.section("worker_defaults", c.WorkerDefaults.Validate())
	found.section("admin", c.Admin.Validate())
	found.section("index_service", c.IndexService.Validate())
	c.validateIndex(found)
	found.section("tokens", c.Tokens.Validate())
	found.section("gateway", c.Gateway.Validate())
	found.section("sync", c.Sync.Validate())
	found.section("telemetry", c.Telemetry.Validate())
}

// validateModels checks that the models' files exist. If there are several models, each model needs a name of its own.
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
			found.add(at, errors.New("with several models each needs a name"))
		case twice:
			found.add(at+".name", fmt.Errorf("%s is also the name of models[%d]", m.Name, other))
		}
		first[m.Name] = i
	}
}

func (c *Config) validateRouting(found *problems) {
	r := c.Routing
	found.section("routing.tier_weights", r.TierWeights.Validate())
	if r.TierWeights == (policy.TierWeights{}) {
		found.add("routing.tier_weights", errors.New("all weights are 0: no block would ever match"))
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
			found.add(fmt.Sprintf("proxy.retry_statuses[%d]", i), fmt.Errorf("%d is outside 400..599: no other status means that a worker failed",
				status))
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

// problems collects the mistakes that Validate finds.
type problems []*problem

func (p *problems) add(path string, err error) { *p = append(*p, &problem{path: path, err: err}) }

// when adds err, unless it is nil.
func (p *problems) when(path string, err error) {
	if err != nil {
		p.add(path, err)
	}
}

// secret reads a secret, and adds what is wrong with it.
func (p *problems) secret(s secret) {
	if wrong := readSecret(s); wrong != nil {
		*p = append(*p, wrong)
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

// section adds the problems that the Validate of a component returned. Each of these problems begins with its key.
func (p *problems) section(name string, err error) {
	if err == nil {
		return
	}
	for _, e := range parts(err) {
		key, rest, ok := strings.Cut(e.Error(), ": ")
		if !ok {
			p.add(name, e)
			continue
		}
		p.add(name+"."+key, errors.New(rest))
	}
}

// parts returns the errors that errors.Join has joined to err, or only err.
func parts(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	return []error{err}
}

//go:embed config.sample.yaml
var sample string

// Sample returns a file that has every key with its default and the reason for the default.
func Sample() string { return sample }

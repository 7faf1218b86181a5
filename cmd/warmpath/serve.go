package main

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/warmpath/warmpath/internal/config"
	"github.com/warmpath/warmpath/internal/discovery"
	"github.com/warmpath/warmpath/internal/replica"
	"github.com/warmpath/warmpath/internal/tokens/inprocess"
)

// serveFlags are the settings that the command line can override. The file has all settings.
type serveFlags struct {
	file, listen, adminListen, policy, logLevel string
	workers, modelPaths                         []string
	targets                                     []discovery.Target
	models                                      []inprocess.Path
	allowHub                                    bool
	engineWait                                  float64
	accessLog, decisionLog                      string
	index                                       string
	disaggregation                              config.Disaggregation
	sync                                        replica.Config
}

func newServe() *cobra.Command {
	var f serveFlags
	c := &cobra.Command{
		Use:   "serve",
		Short: "Route requests to workers",
		Long: `Route requests to workers. Name each worker by its URL:

  warmpath serve --worker http://gpu-1:8000 --worker http://gpu-2:8000

The router asks the worker for its engine, models, block size, data-parallel ranks and event
endpoints. If an engine cannot report its event endpoints, add them to the URL:

  warmpath serve --worker http://gpu-2:8000,events=tcp://gpu-2:5557,replay=tcp://gpu-2:5657

The router computes token ids by itself if it can read the model's files, at the path that the
engine reports or in the Hugging Face cache, and if the ids equal the engine's. If not, the log
says so and what to do.

Service levels are set in the file (service_levels; docs/configure.md).
The flags of sglang-router, SMG, vllm-router and Dynamo that mean a setting of this router work, too
(docs/migrate.md); the log says which setting each of them became.
Flags override the file. The router reads the file again after it changed (watch_interval), and after
SIGHUP or POST /admin/reload. After SIGTERM the router finishes the requests under way, and then ends.
A second SIGTERM, 1 s later or more, ends it at once.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := f.parse(); err != nil {
				return err
			}
			return serve(c, &f)
		},
	}
	d := config.Default()
	flags := c.Flags()
	flags.StringVar(&f.listen, "listen", d.Listen, "`ADDR` for clients: the model API, /health, /readiness")
	flags.StringVar(&f.adminListen, "admin-listen", d.Admin.Listen, "`ADDR` for operators: /metrics, /admin/…; an address that other machines reach needs a key ("+config.EnvAdminKey+" or admin.key_file)")
	flags.StringVar(&f.policy, "policy", d.Policy, "`NAME` of a type of policy or of a policy in the file; TYPE:KEY=VALUE,… gives it parameters. `warmpath config sample` lists them")
	flags.StringVar(&f.disaggregation.Mode, "disaggregation", d.Disaggregation.Mode, "`MODE`: auto divides a request between a prefill and a decode worker if that costs less, always does so if it can, never does not")
	flags.IntVar(&f.disaggregation.UncachedTokenThreshold, "pd-uncached-token-threshold", d.Disaggregation.UncachedTokenThreshold, "`TOKENS` of a prompt that are not cached, from which on auto divides a request; 0 is no threshold")
	flags.StringVar(&f.disaggregation.PrefillPolicy, "prefill-policy", "", "`NAME` of the policy that chooses prefill workers; default: the request's policy")
	flags.StringVar(&f.disaggregation.DecodePolicy, "decode-policy", "", "`NAME` of the policy that chooses decode workers; default: the request's policy")
	flags.StringVar(&f.file, "config", "", "`FILE` with all other settings; see `warmpath config sample`")
	flags.StringArrayVar(&f.workers, "worker", nil, "`URL` of an engine, with the facts that the engine cannot report: URL[,events=ENDPOINT][,replay=ENDPOINT][,topic=TEXT][,model=NAME][,ranks=N][,role=prefill|decode|both][,connector=NAME][,transfer_host=HOST][,transfer_port=PORT][,engine_id=ID][,tensor_parallel=N][,kv_bytes_per_token=BYTES][,label.NAME=VALUE]; repeatable")
	flags.StringArrayVar(&f.modelPaths, "model-path", nil, "`[NAME=]DIR` with a model's tokenizer and chat template, or hub:ORG/NAME with --allow-hub; needed only if the router does not find the files; repeatable")
	flags.BoolVar(&f.allowHub, "allow-hub", false, "download the files of hub:ORG/NAME models and of models that engines report; uses "+config.EnvHubToken+" and "+config.EnvHubEndpoint)
	flags.Float64Var(&f.engineWait, "engine-wait-timeout-secs", d.Gateway.Hold.MaxWait.Seconds(), "`SECONDS` for which a request waits while no worker can take it; 0 answers 503 immediately")
	flags.StringVar(&f.index, "index", "", "`URL` of an index service (warmpath index) that is asked in place of an index of the router's own")
	flags.StringVar(&f.logLevel, "log-level", d.Telemetry.LogLevel, "`LEVEL`: debug, info, warn, error")
	flags.StringVar(&f.accessLog, "access-log", "", "`FILE` for one line of JSON for each request; or stdout")
	flags.StringVar(&f.decisionLog, "decision-log", "", "`FILE` for one line of JSON for each decision, which `warmpath replay` reads; or stdout")
	flags.StringVar(&f.sync.NATS, "sync-nats", "", "`URL` of a NATS server over which routers tell each other of their requests, as nats://host:4222 (docs/replicas.md)")
	flags.BoolVar(&f.sync.Embedded, "sync-embedded", false, "tell other routers of the requests over a NATS server in this process, instead of --sync-nats")
	flags.StringVar(&f.sync.Listen, "sync-listen", d.Sync.Listen, "`ADDR` of the embedded server, for the servers of the other routers")
	flags.StringArrayVar(&f.sync.Routes, "sync-route", nil, "`URL` of another router's embedded server, as nats-route://host:4248; repeatable")
	flags.StringVar(&f.sync.Group, "sync-group", d.Sync.Group, "`NAME` that the routers in front of the same workers have in common")
	flags.StringVar(&f.sync.KeyFile, "sync-key-file", "", "`FILE` with the key by which the routers sign what they tell; or "+config.EnvSyncKey)
	addForeign(flags)
	return c
}

// parseWorkers reads the values of --worker.
func parseWorkers(values []string) (targets []discovery.Target, err error) {
	for _, value := range values {
		t, err := discovery.ParseTarget(value)
		if err != nil {
			return nil, usageError{err}
		}
		targets = append(targets, t)
	}
	return targets, nil
}

// parseModelPaths reads the values of --model-path, and checks the folders. download says whether a value may name a
// model on the hub.
func parseModelPaths(values []string, download bool) (models []inprocess.Path, err error) {
	for _, value := range values {
		m, err := inprocess.ParsePath(value)
		if err == nil {
			err = m.Check(download)
		}
		if err != nil {
			return nil, usageError{fmt.Errorf("--model-path %s: %w", value, err)}
		}
		models = append(models, m)
	}
	return models, nil
}

// override returns a function that applies the given flags to a configuration.
func (f *serveFlags) override(c *cobra.Command) func(*config.Config) {
	changed := c.Flags().Changed
	given := givenForeign(c.Flags())
	return func(cfg *config.Config) {
		if changed("listen") {
			cfg.Listen = f.listen
		}
		if changed("admin-listen") {
			cfg.Admin.Listen = f.adminListen
		}
		if changed("policy") {
			cfg.Policy = f.policy
		}
		f.divide(changed, &cfg.Disaggregation)
		f.share(changed, &cfg.Sync)
		if changed("index") {
			cfg.Index.URL = f.index
		}
		if changed("log-level") {
			cfg.Telemetry.LogLevel = f.logLevel
		}
		if changed("engine-wait-timeout-secs") {
			cfg.Gateway.Hold.MaxWait = time.Duration(f.engineWait * float64(time.Second))
		}
		if changed("access-log") {
			cfg.Telemetry.AccessLog.File = f.accessLog
		}
		if changed("decision-log") {
			cfg.Telemetry.DecisionLog.File = f.decisionLog
		}
		if len(f.targets) > 0 {
			cfg.Workers = f.targets
		}
		if len(f.models) > 0 {
			cfg.Models = f.models
		}
		if changed("allow-hub") {
			cfg.Hub.Allow = f.allowHub
		}
		_, _ = config.ApplyForeign(cfg, given) // checkForeign has reported the errors
	}
}

// parse reads the flags that have a syntax of their own.
func (f *serveFlags) parse() (err error) {
	if f.targets, err = parseWorkers(f.workers); err != nil {
		return err
	}
	f.models, err = parseModelPaths(f.modelPaths, true) // the configuration file may allow downloads
	return err
}

// divide applies the given flags about the division of requests.
func (f *serveFlags) divide(changed func(string) bool, d *config.Disaggregation) {
	if changed("disaggregation") {
		d.Mode = f.disaggregation.Mode
	}
	if changed("pd-uncached-token-threshold") {
		d.UncachedTokenThreshold = f.disaggregation.UncachedTokenThreshold
	}
	if changed("prefill-policy") {
		d.PrefillPolicy = f.disaggregation.PrefillPolicy
	}
	if changed("decode-policy") {
		d.DecodePolicy = f.disaggregation.DecodePolicy
	}
}

// share applies the given flags about the sharing of requests.
func (f *serveFlags) share(changed func(string) bool, s *replica.Config) {
	if changed("sync-nats") {
		s.NATS = f.sync.NATS
	}
	if changed("sync-embedded") {
		s.Embedded = f.sync.Embedded
	}
	if changed("sync-listen") {
		s.Listen = f.sync.Listen
	}
	if changed("sync-route") {
		s.Routes = f.sync.Routes
	}
	if changed("sync-group") {
		s.Group = f.sync.Group
	}
	if changed("sync-key-file") {
		s.Key, s.KeyFile = "", f.sync.KeyFile
	}
}

var errNoWorkers = errors.New(`there are no workers to route to.
Name the engines:             warmpath serve --worker http://gpu-1:8000 --worker http://gpu-2:8000
or list them in a file:       warmpath config sample > warmpath.yaml, fill in its workers,
                              then warmpath serve --config warmpath.yaml
or try without an engine:     warmpath demo
or start a mock engine first: warmpath mock --listen 127.0.0.1:8000`)

func serve(c *cobra.Command, f *serveFlags) error {
	mapped, err := f.checkForeign(c)
	if err != nil {
		return err
	}
	load := func() (*config.Config, error) { return config.Load(f.file, f.override(c)) }
	cfg, err := load()
	if err != nil {
		err = blameForeign(err, mapped)
		if f.file == "" {
			return usageError{err} // without a file the mistake is in the flags
		}
		return err
	}
	if len(cfg.Workers) == 0 && f.file == "" {
		return usageError{errNoWorkers}
	}
	p := process{cfg: cfg, file: f.file, drain: cfg.Gateway.DrainDelay + cfg.Gateway.DrainTimeout, begin: func(log *slog.Logger) {
		logForeign(log, mapped)
		if len(cfg.Workers) == 0 && len(cfg.FileWorkers) == 0 && len(cfg.WorkersDNS.Names) == 0 {
			log.Warn("the file lists no workers, so every request is refused: add them (workers: [{url: http://gpu-1:8000}]) and reload (SIGHUP or POST /admin/reload)",
				"file", f.file)
		}
		for _, w := range cfg.Warnings() {
			log.Warn(w)
		}
	}}
	script := slices.ContainsFunc(cfg.Policies, func(p config.Policy) bool { return p.Type == "script" })
	if f.file != "" || script { // a script that only a flag names is a file that may change, too
		p.load = load
	}
	return p.run(c)
}

package main

import (
	"cmp"

	"github.com/spf13/cobra"

	"github.com/warmpath/warmpath/internal/config"
	"github.com/warmpath/warmpath/internal/indexer"
)

// indexFlags are the settings of the index service that the command line can override.
type indexFlags struct {
	serveFlags
	grpcListen string
}

func newIndex() *cobra.Command {
	var f indexFlags
	c := &cobra.Command{
		Use:   "index",
		Short: "Offer the index of workers' KV caches to routers and other programs",
		Long: `Follow the KV events of workers, and answer other programs over HTTP and gRPC: how much of a
prompt does each worker have in its cache? It routes no requests.

  warmpath index --listen 127.0.0.1:8090 --worker http://gpu-1:8000 --worker http://gpu-2:8000
  curl 127.0.0.1:8090/query -d '{"model_name":"llama","token_ids":[1,2,3]}'

Workers can also register: routers that use the service do (warmpath serve --index URL), and other
programs call POST /register with the endpoint of a worker's events. So a list of workers is not
required. The service listens on this machine only; an address that other machines reach needs a
key (` + config.EnvIndexKey + ` or index_service.key_file).

The file is that of warmpath serve: workers, events, index and index_service count. With
index.backend: valkey this process writes the index that the routers read (docs/shared-index.md).
SIGHUP reads it again.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := f.parse(); err != nil {
				return err
			}
			return serveIndex(c, &f)
		},
	}
	flags := c.Flags()
	flags.StringVar(&f.listen, "listen", indexer.DefaultListen, "`ADDR` for HTTP: /query, /register, /workers, /changes, /metrics, …")
	flags.StringVar(&f.grpcListen, "grpc-listen", "", "`ADDR` for gRPC (indexer.proto); empty for none")
	flags.StringVar(&f.file, "config", "", "`FILE` with all other settings; see `warmpath config sample`")
	flags.StringArrayVar(&f.workers, "worker", nil, "`URL` of an engine, as for warmpath serve; repeatable")
	flags.StringArrayVar(&f.modelPaths, "model-path", nil, "`[NAME=]DIR` with a model's tokenizer and chat template, for questions about texts and chats; repeatable")
	flags.BoolVar(&f.allowHub, "allow-hub", false, "download the files of hub:ORG/NAME models and of models that engines report")
	flags.StringVar(&f.logLevel, "log-level", config.Default().Telemetry.LogLevel, "`LEVEL`: debug, info, warn, error")
	return c
}

// override returns a function that applies the given flags to a configuration. The process has no listener for clients
// and none for operators.
func (f *indexFlags) override(c *cobra.Command) func(*config.Config) {
	shared := f.serveFlags.override(c)
	return func(cfg *config.Config) {
		shared(cfg)
		s := &cfg.IndexService
		if c.Flags().Changed("listen") {
			s.Listen = f.listen
		}
		s.Listen = cmp.Or(s.Listen, indexer.DefaultListen)
		if c.Flags().Changed("grpc-listen") {
			s.GRPCListen = f.grpcListen
		}
		cfg.Listen, cfg.Admin.Listen = "127.0.0.1:0", ""
		// A file may be that of the routers. This process is where their index is.
		tls := cfg.Index.TLS // is for peers, too
		cfg.Index.ClientConfig = indexer.DefaultClientConfig()
		if cfg.Index.AsksByTLS() {
			cfg.Index.TLS = tls
		}
		cfg.Index.Valkey.Write = cfg.Index.Backend == config.BackendValkey
	}
}

func serveIndex(c *cobra.Command, f *indexFlags) error {
	load := func() (*config.Config, error) { return config.Load(f.file, f.override(c)) }
	cfg, err := load()
	if err != nil {
		if f.file == "" {
			return usageError{err} // without a file the mistake is in the flags
		}
		return err
	}
	p := process{cfg: cfg, file: f.file, indexOnly: true}
	if f.file != "" {
		p.load = load
	}
	return p.run(c)
}

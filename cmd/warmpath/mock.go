package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/internal/engine"
	"github.com/warmpath/warmpath/internal/mockengine"
	"github.com/warmpath/warmpath/kvevent"
)

func newMock() *cobra.Command {
	cfg := mockengine.DefaultConfig()
	cfg.Listen, cfg.Speed = "127.0.0.1:8000", 1
	kind := string(cfg.Kind)
	cfg.Transfer.GBs = engine.Profiles()[0].HandoverGBs
	c := &cobra.Command{
		Use:   "mock",
		Short: "Run a mock engine: vLLM's or SGLang's API, a real block pool, real KV events",
		Long: `Run a mock engine for tests. It has the HTTP API of vLLM or SGLang as far as a router uses it,
a real block pool with prefix caching, and KV events over ZMQ with replay. It has no model files, so
a router asks it for token ids; ignore the router's advice to name files. POST /mock/fault makes
the engine misbehave, GET /mock/fault lists the faults in force:

  curl 127.0.0.1:8000/mock/fault -d '{"kind":"restart","down":"2s"}'

` + mockengine.FaultDoc,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cfg.Kind = mockengine.Kind(kind)
			if cfg.Wire != "" && !strings.HasPrefix(cfg.Wire, kind+"-") && slices.ContainsFunc(kvevent.Wires(), func(known string) bool {
				engine, _, _ := strings.Cut(cfg.Wire, "-")
				return strings.HasPrefix(known, engine+"-")
			}) {
				return usageError{fmt.Errorf("--wire %s is an encoding of another engine than --kind %s", cfg.Wire, kind)}
			}
			if err := checkMock(c.Flags(), &cfg); err != nil {
				return usageError{err}
			}
			if cfg.Transfer.Connector == "" {
				cfg.Transfer = mockengine.Transfer{}
			}
			server, err := mockengine.New(cfg)
			if err != nil {
				return usageError{err}
			}
			ctx, cancel := context.WithCancel(c.Context())
			announced := make(chan struct{})
			go func() { // ends when the engine is ready or has ended; the code below waits for it
				defer close(announced)
				select {
				case <-server.Ready():
					announce(c.OutOrStdout(), server, &cfg)
				case <-ctx.Done():
				}
			}()
			err = server.Run(ctx)
			cancel()
			<-announced
			if errors.Is(err, syscall.EADDRINUSE) {
				return fmt.Errorf("%w; choose another address with %s", err, flagOfAddress(err))
			}
			return err
		},
	}
	flags := c.Flags()
	flags.StringVar(&cfg.Listen, "listen", cfg.Listen, "`ADDR` of the HTTP API; port 0 takes a free one")
	flags.StringVar(&kind, "kind", kind, "`ENGINE` to imitate: vllm or sglang")
	flags.StringVar(&cfg.Model, "model", cfg.Model, "`NAME` of the model")
	flags.StringArrayVar(&cfg.LoRA, "lora", nil, "`NAME` of a LoRA adapter; repeatable")
	flags.BoolVar(&cfg.UpdateLoRA, "update-lora", cfg.UpdateLoRA, "load and unload adapters on demand, as vLLM with VLLM_ALLOW_RUNTIME_LORA_UPDATING=True")
	flags.IntVar(&cfg.MaxLoRAs, "max-loras", cfg.MaxLoRAs, "adapters that the engine reports to keep; 0 for the number of --lora, or 1")
	flags.IntVar(&cfg.BlockSize, "block-size", cfg.BlockSize, "`TOKENS` in a block")
	flags.IntVar(&cfg.Blocks, "blocks", cfg.Blocks, "blocks of each rank's cache")
	flags.IntVar(&cfg.CPUBlocks, "cpu-blocks", cfg.CPUBlocks, "blocks of each rank's CPU tier; 0 for none")
	flags.IntVar(&cfg.MaxSequences, "max-sequences", cfg.MaxSequences, "most requests that a rank computes at the same time; further requests wait")
	flags.IntVar(&cfg.Ranks, "ranks", cfg.Ranks, "data-parallel ranks behind the URL")
	flags.StringVar(&cfg.Events, "events", cfg.Events, "`ENDPOINT` to publish KV events at; rank r uses port + r, port 0 means free ports; empty for none")
	flags.StringVar(&cfg.Replay, "replay", cfg.Replay, "`ENDPOINT` of the replay socket; empty for none")
	flags.StringVar(&cfg.Topic, "topic", cfg.Topic, "first frame of each event message")
	flags.StringVar(&cfg.Wire, "wire", cfg.Wire, "`VERSION` of the event encoding: "+strings.Join(kvevent.Wires(), ", ")+"; a version between two of these has the encoding of the older one; empty for the engine's newest encoding")
	flags.Float64Var(&cfg.Speed, "speed", cfg.Speed, "`FACTOR` by which the engine is faster than the modelled hardware; 0 for no delays")
	flags.IntVar(&cfg.OutputTokens, "output-tokens", cfg.OutputTokens, "length of an answer if the request sets none")
	flags.Uint64Var(&cfg.Seed, "seed", cfg.Seed, "seed of answers and faults")
	flags.BoolVar(&cfg.ScaleOut, "scale-out", cfg.ScaleOut, "answer the render endpoints, as vLLM with --enable-scale-out")
	flags.BoolVar(&cfg.DevMode, "dev-mode", false, "answer /server_info, as vLLM with VLLM_SERVER_DEV_MODE=1")
	transferFlags(flags, &cfg.Transfer)
	flags.StringVar(&cfg.APIKey, "api-key", cfg.APIKey, "API `KEY` that requests to /v1/ must carry")
	return c
}

// transferFlags defines the flags of a worker that only prefills or decodes.
func transferFlags(flags *pflag.FlagSet, t *mockengine.Transfer) {
	flags.StringVar((*string)(&t.Connector), "connector", "", "`NAME` of the way in which KV moves between prefill and decode workers: "+strings.Join(mockengine.Connectors(), ", ")+"; empty for none")
	flags.StringVar((*string)(&t.Role), "role", "both", "`ROLE` of a worker with --connector: prefill, decode or both")
	flags.StringVar(&t.Listen, "side-channel", "", "`ADDR` at which other engines read blocks, with --connector; empty for a free port of --listen's host")
	flags.Float64Var(&t.GBs, "link-gb-s", t.GBs, "bandwidth of the link to other engines, in GB/s; 0 for transfers without delay")
	flags.DurationVar(&t.Lease, "lease", 30*time.Second, "how long blocks are kept for another engine")
	flags.StringVar(&t.Store, "store", "", "`ADDR` of the side channel of the engine with the shared store, for --connector shared; empty if this engine has it")
	flags.BoolVar(&t.SwitchRoles, "switch-roles", false, "let POST /pd_role_switch change the role (SGLang's --enable-pd-role-switch)")
	flags.BoolVar(&t.Bidirectional, "both-directions", false, "keep the blocks of decode workers for the next turn's prefill (vLLM's bidirectional_kv_xfer)")
}

// checkMock returns an error with the flag's name if the number of a flag is outside its limits. mockengine.New has the
// same limits, but does not know the names of flags.
func checkMock(flags *pflag.FlagSet, cfg *mockengine.Config) error {
	for _, f := range []struct {
		name               string
		value, least, most int
	}{
		{"block-size", cfg.BlockSize, 1, block.MaxSize},
		{"blocks", cfg.Blocks, 2, engine.MaxBlocks},
		{"cpu-blocks", cfg.CPUBlocks, 0, engine.MaxBlocks},
		{"max-sequences", cfg.MaxSequences, 1, math.MaxInt},
		{"ranks", cfg.Ranks, 1, mockengine.MaxRanks},
		{"output-tokens", cfg.OutputTokens, 1, math.MaxInt},
	} {
		standard := flags.Lookup(f.name).DefValue
		switch {
		case f.value < f.least:
			return fmt.Errorf("--%s %d: give at least %d, or leave the flag out for %s", f.name, f.value, f.least, standard)
		case f.value > f.most:
			return fmt.Errorf("--%s %d: give at most %d, or leave the flag out for %s", f.name, f.value, f.most, standard)
		}
	}
	if flag, set := transferFlagWithout(flags, cfg); set {
		return fmt.Errorf("--%s has no effect without --connector: name one of %s", flag, strings.Join(mockengine.Connectors(), ", "))
	}
	if !(cfg.Transfer.GBs >= 0) {
		return fmt.Errorf("--link-gb-s %g: give 0 for no delays, or a positive number", cfg.Transfer.GBs)
	}
	if cfg.Transfer.Lease <= 0 {
		return fmt.Errorf("--lease %v: give a positive duration, like 30s", cfg.Transfer.Lease)
	}
	if !(cfg.Speed >= 0) {
		return fmt.Errorf("--speed %g: give 0 for no delays, or a positive number", cfg.Speed)
	}
	return nil
}

// transferFlagWithout returns a flag that is set although it needs --connector, which is not set.
func transferFlagWithout(flags *pflag.FlagSet, cfg *mockengine.Config) (name string, set bool) {
	if cfg.Transfer.Connector != "" {
		return "", false
	}
	for _, name := range []string{"role", "side-channel", "link-gb-s", "lease", "both-directions", "switch-roles", "store"} {
		if flags.Changed(name) {
			return name, true
		}
	}
	return "", false
}

// flagOfAddress returns the flag of the address that could not be opened.
func flagOfAddress(err error) string {
	switch {
	case errors.Is(err, mockengine.ErrReplay):
		return "--replay"
	case errors.Is(err, mockengine.ErrEvents):
		return "--events"
	case errors.Is(err, mockengine.ErrSideChannel):
		return "--side-channel"
	}
	return "--listen"
}

// announce prints the engine's addresses.
func announce(out io.Writer, server *mockengine.Server, cfg *mockengine.Config) {
	fmt.Fprintf(out, "mock %s engine at %s, model %s\n", cfg.Kind, server.URL(), cfg.Model)
	if cfg.Transfer.Connector != "" {
		fmt.Fprintf(out, "  role %s, connector %s, side channel %s\n", cfg.Transfer.Role, cfg.Transfer.Connector, server.SideChannel())
	}
	for _, s := range server.Sources() {
		fmt.Fprintf(out, "  rank %d: events %s", s.Rank, s.Endpoint)
		if s.Replay != "" {
			fmt.Fprintf(out, ", replay %s", s.Replay)
		}
		fmt.Fprintln(out)
	}
}

package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/warmpath/warmpath/internal/app"
	"github.com/warmpath/warmpath/internal/config"
	"github.com/warmpath/warmpath/internal/telemetry"
	"github.com/warmpath/warmpath/internal/tokens/inprocess"
)

// process is an App that serves until its command ends: a router, or an index service.
type process struct {
	cfg       *config.Config
	load      func() (*config.Config, error) // reads the configuration again; nil: reloads are refused
	file      string                         // the configuration file; "" if there is none
	indexOnly bool
	drain     time.Duration          // how long requests under way may take at the end
	begin     func(log *slog.Logger) // says first what the configuration is about; nil: nothing
}

// run serves until the context of the command ends.
func (p *process) run(c *cobra.Command) error {
	own, err := telemetry.NewLog(p.cfg.Telemetry, c.ErrOrStderr())
	if err != nil {
		return err
	}
	go own.Run()      // ends after Close, or with the process if nobody reads the standard error
	defer own.Close() // before the command prints an error
	log := own.Logger()
	defer telemetry.TakeStandardLog(log)()
	if p.begin != nil {
		p.begin(log)
	}
	options := app.Options{Log: log, LogLines: own.Lines, Version: release(), IndexOnly: p.indexOnly, Load: p.load, File: p.file}
	if options.Models, err = inprocess.NewHub(config.Hub(p.cfg.Hub), log).Folders(c.Context(), p.cfg.Models); err != nil {
		return err
	}
	a, err := app.New(p.cfg, options)
	if err != nil {
		return err
	}
	signal.Ignore(syscall.SIGPIPE) // a reader of the logs that ends must not end the process: lines are lost, and counted
	super := supervisor{socket: config.NotifySocket(), log: log}
	defer super.follow(c.Context(), a, p.drain+stopMargin)()
	defer reloadOnHangup(c.Context(), a, super, log)()
	return a.Run(c.Context())
}

// stopMargin is how long the process may take to end after the drain, as its supervisor hears it: twice what the App
// allows its components.
const stopMargin = 10 * time.Second

// reloadOnHangup reloads at each SIGHUP until stop is called. stop waits at most a second for a reload under way.
func reloadOnHangup(ctx context.Context, a *app.App, super supervisor, log *slog.Logger) (stop func()) {
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { // ends with ctx; stop waits
		defer close(done)
		for {
			select {
			case <-ctx.Done():
				return
			case <-hangups:
				super.reloading()
				if _, err := a.Reload(); err != nil {
					log.Error("reload refused: the old configuration stays", "error", err)
				}
				super.ready()
			}
		}
	}()
	return func() {
		signal.Stop(hangups)
		cancel()
		select {
		case <-done:
		case <-time.After(time.Second): // a reload that hangs must not keep the process from ending
			log.Error("a reload hangs: the process ends without waiting for it")
		}
	}
}

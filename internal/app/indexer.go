package app

import (
	"context"
	"errors"
	"net"
	"net/http"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/config"
	"github.com/warmpath/warmpath/internal/discovery"
	"github.com/warmpath/warmpath/internal/gateway"
	"github.com/warmpath/warmpath/internal/indexer"
	"github.com/warmpath/warmpath/internal/snapshot"
)

// indexService is the index of this process as a service for others.
type indexService struct {
	*indexer.Service
	changes    *indexer.Changes
	front, rpc net.Listener // nil until listenIndex; rpc stays nil without gRPC
}

// newIndexService returns the service of a router that is made with options, and lets it hear of the router's changes.
// finishIndexService makes the rest.
func newIndexService(f *fleet.Fleet, options *warmpath.Options) *indexService {
	s := &indexService{changes: indexer.NewChanges(f)}
	hearChanges(options, s.changes.Made)
	return s
}

// finishIndexService makes the service from the components of the App. clients and operators are the limits of the
// listeners that the process may have besides. A process that only offers its index has neither clients nor operators:
// a third of the file descriptors is for connections over HTTP, a third for those over gRPC, and the rest for events.
func (a *App) finishIndexService(cfg *config.Config, clients, operators gateway.ConnectionLimit) {
	limit := operators
	if a.options.IndexOnly {
		limit = clients
	}
	a.service.Service = indexer.New(cfg.IndexService, indexer.Parts{
		Router: a.router, Fleet: a.fleet, Telemetry: a.telemetry, Log: a.log, Changes: a.service.changes, Metrics: a.telemetry.Handler(a.sources()),
		More: map[string]http.Handler{snapshot.Path: a.giver}, Tokens: a.tokens, Certificates: a.indexCertificates, Scoped: a.kvfeed.Scoped, Routes: !a.options.IndexOnly,
		Listed: func(worker string) string {
			from, _, _ := a.workers.SourceOf(discovery.NormalURL(worker))
			return string(from)
		},
		ListedAll: func() map[string]string {
			out := map[string]string{}
			for url, from := range a.workers.Listed() {
				out[url] = string(from)
			}
			return out
		},
		Connections: indexer.Connections{GRPC: limit.Serving, Readers: (limit.Serving + 1) / 2, HTTP: func(l net.Listener, server *http.Server, refuse http.HandlerFunc) net.Listener {
			return gateway.LimitConnections(l, server, limit, refuse)
		}},
	})
}

// listenIndex opens the addresses of the index service.
func (a *App) listenIndex(cfg *config.Config) (err error) {
	s := a.service
	front, rpc := "index_service.listen", "index_service.grpc_listen"
	if a.options.IndexOnly {
		front, rpc = "--listen ("+front+")", "--grpc-listen ("+rpc+")"
	}
	if s.front, err = a.listen("the index service", front, cfg.IndexService.Listen); err != nil {
		return err
	}
	if cfg.IndexService.GRPCListen == "" {
		return nil
	}
	if s.rpc, err = a.listen("the index service's gRPC", rpc, cfg.IndexService.GRPCListen); err != nil {
		s.close()
	}
	return err
}

// serve answers until ctx ends.
func (s *indexService) serve(ctx context.Context) error { return s.Serve(ctx, s.front, s.rpc) }

// close closes the addresses of a service that does not serve.
func (s *indexService) close() {
	if s == nil || s.front == nil {
		return
	}
	_ = s.front.Close()
	if s.rpc != nil {
		_ = s.rpc.Close()
	}
}

// IndexAddrs returns the addresses of the index service for HTTP and gRPC; nil where there is none. It may be called
// when Listening is closed.
func (a *App) IndexAddrs() (front, rpc net.Addr) {
	if a.service == nil {
		return nil, nil
	}
	if a.service.rpc != nil {
		rpc = a.service.rpc.Addr()
	}
	return a.service.front.Addr(), rpc
}

// runIndex does the work of Run for a process that only offers its index.
func (a *App) runIndex(ctx, stopping context.Context, stop context.CancelCauseFunc, g *group, cfg *config.Config, drained chan<- struct{}) error {
	if err := a.listenIndex(cfg); err != nil {
		return err
	}
	close(a.listening)
	front, rpc := a.IndexAddrs()
	a.log.Info("offering the index", "listen", addr(front), "grpc", addr(rpc), "workers", len(cfg.Workers)+len(cfg.FileWorkers))
	rest, stopRest := context.WithCancel(context.WithoutCancel(ctx)) // stopRest ends the other components, after the service
	defer stopRest()
	a.runFollowers(rest, g, stop, cfg)
	end := g.begin("index service")
	served := a.service.serve(stopping)
	end()
	close(drained)
	a.keeper.Save(rest)
	stopRest()
	g.wg.Wait()
	a.tokens.Close()
	a.log.Info("stopped")
	if cause := context.Cause(stopping); cause != nil && ctx.Err() == nil && !errors.Is(served, cause) {
		served = errors.Join(cause, served)
	}
	stop(nil)
	return served
}

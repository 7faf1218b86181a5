package app

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/warmpath/warmpath/fleet"
)

// rolesEvery is the time between two checks of the roles. Workers that start together are usually found within this
// time. So a prefill worker that is found before its decode worker causes no line in the log.
const rolesEvery = 5 * time.Second

// lacking has a message for each model, and for each worker, that needs a worker with another role.
type lacking map[string]string

// watchRoles logs when prefill workers have no decode worker, and when they have one again.
func (a *App) watchRoles(ctx context.Context) error {
	ticker := time.NewTicker(rolesEvery)
	defer ticker.Stop()
	for known := (lacking{}); ; {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			known.look(a.fleet.Snapshot(), a.log)
		}
	}
}

// look compares l with the present roles, logs the differences, and updates l.
func (l lacking) look(s *fleet.Snapshot, log *slog.Logger) {
	now := lacking{}
	for _, m := range s.Models() {
		pool, ok := s.Pool(m.ID)
		if !ok || pool.Prefill == nil {
			continue
		}
		if !slices.ContainsFunc(pool.Workers, func(w *fleet.Worker) bool { return w.Facts.Role != fleet.RolePrefill }) {
			now["model "+m.ID] = "no worker generates answers, so requests are refused: all workers of the model have the role prefill; add one with the role decode or both"
			continue
		}
		for _, w := range pool.Workers {
			switch f := &w.Facts; {
			case f.Transfer.LegsOnly && f.Role == fleet.RoleDecode && !pool.Prefill.Pairs(w):
				now["worker "+w.URL] = "the decode worker gets no requests: its engine serves only parts of requests, and no prefill worker has its connector"
			case f.Role != fleet.RolePrefill:
			case f.Transfer.Connector == "":
				now["worker "+w.URL] = "the prefill worker gets no requests, because it has no connector: its notes in /admin/workers say why"
			case !pool.Decode.Pairs(w):
				now["worker "+w.URL] = fmt.Sprintf("the prefill worker gets no requests, because no decode worker has its connector, %s: see connector of the workers in /admin/workers", f.Transfer.Connector)
			}
		}
	}
	for of, message := range now {
		if l[of] != message {
			log.Warn(message, "of", of)
		}
	}
	for of := range l {
		if now[of] == "" {
			log.Info("roles of workers: nothing is missing any more", "of", of)
		}
	}
	clear(l)
	maps.Copy(l, now)
}

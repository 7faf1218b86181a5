package app

import (
	"context"
	"time"
)

// reclaimEvery is the pause between two searches for ids that may be used again. A search looks at every holder.
const reclaimEvery = 10 * time.Minute

// reclaim frees the ids of holders that left long ago, until ctx ends.
func (a *App) reclaim(ctx context.Context) error {
	ticker := time.NewTicker(reclaimEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-ticker.C:
			if n := a.router.Reclaim(now.UnixNano()); n > 0 {
				a.log.Debug("ids of holders that left are free", "holders", n)
			}
		}
	}
}

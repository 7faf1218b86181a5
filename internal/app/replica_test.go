package app

import (
	"testing"

	"github.com/warmpath/warmpath/internal/config"
	"github.com/warmpath/warmpath/internal/replica"
)

// A router shows its admin key to the routers that it asks for an index. Without a key of sync, anybody on NATS could
// tell an address.
func TestOnlySignedMessagesTellWhomToAsk(t *testing.T) {
	a := &App{replica: &replica.Sync{}}
	for key, want := range map[string]bool{"": false, "a key": true} {
		cfg := config.Default()
		cfg.Sync.Key = key
		if got := a.asksReplicas(&cfg); got != want {
			t.Errorf("with the key %q other routers are asked: %v", key, got)
		}
		for _, elsewhere := range []func(){
			func() { cfg.Index.URL = "http://index:8090" },
			func() { cfg.Index.URL, cfg.Index.Backend = "", config.BackendValkey },
		} {
			if elsewhere(); a.asksReplicas(&cfg) {
				t.Errorf("with the key %q a router without an index of its own asks for one", key)
			}
		}
	}
}

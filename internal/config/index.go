package config

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/warmpath/warmpath/internal/indexer"
	"github.com/warmpath/warmpath/internal/network"
	"github.com/warmpath/warmpath/internal/sharedindex"
	"github.com/warmpath/warmpath/internal/snapshot"
	"github.com/warmpath/warmpath/kvindex"
)

// validateIndexOff finds settings of the index that have no effect.
func (c *Config) validateIndexOff(found *problems) {
	i := &c.Index
	if i.Backend == BackendMemory {
		if set := differing(reflect.ValueOf(i.Valkey), reflect.ValueOf(sharedindex.DefaultConfig()), ""); len(set) > 0 {
			found.add("index.valkey", fmt.Errorf("it has no effect with index.backend: memory; set index.backend: valkey, or remove %s", strings.Join(set, ", ")))
		}
	}
	if i.URL == "" {
		usual := indexer.DefaultClientConfig()
		usual.TLS = i.TLS
		for _, key := range differing(reflect.ValueOf(i.ClientConfig), reflect.ValueOf(usual), "index.") {
			found.add(key, errors.New("it has no effect without an index service: set index.url (--index http://host:8090), too, or remove it"))
		}
	} else {
		for _, key := range differing(reflect.ValueOf(i.Config), reflect.ValueOf(kvindex.DefaultConfig()), "index.") {
			found.add(key, errors.New("it has no effect with index.url, because the index is in the index service: set it there, or remove it"))
		}
	}
	c.validateWarmStartOff(found)
	// The file of a router that has its index elsewhere may be that of `warmpath index`, too, which always listens.
	if s := c.IndexService; s.Listen == "" && s.GRPCListen == "" && !i.Elsewhere() {
		for _, one := range []struct {
			key string
			set bool
		}{
			{"key_file", s.KeyFile != ""},
			{"key", s.Key != ""},
			{"tls", s.TLS != (network.ListenerTLS{})},
		} {
			if one.set {
				found.add("index_service."+one.key, fmt.Errorf("it has no effect, because nothing listens: set index_service.listen (`warmpath index` has %s by default), too, or remove it", indexer.DefaultListen))
			}
		}
	}
}

// validateWarmStartOff finds settings of peers and of the snapshot file that have no effect. Routers that share their
// requests with a key are peers, too.
func (c *Config) validateWarmStartOff(found *problems) {
	i, usual := &c.Index, snapshot.DefaultConfig()
	peers := len(i.Peers) > 0 || c.Sync.On() && (c.Sync.Key != "" || c.Sync.KeyFile != "")
	if i.SnapshotFile == "" && i.SnapshotInterval != usual.SnapshotInterval {
		found.add("index.snapshot_interval", errors.New("it has no effect without a file: set index.snapshot_file, too, or remove it"))
	}
	if !peers && i.PeerTimeout != usual.PeerTimeout {
		found.add("index.peer_timeout", errors.New("it has no effect without peers: set index.peers or sync with a key, too, or remove it"))
	}
	if i.TLS != (network.PeerTLS{}) && !i.AsksByTLS() {
		found.add("index.tls", errors.New("it has no effect without an https address in index.url or index.peers"))
	}
}

// AsksByTLS reports whether index.url or one of index.peers is an https address.
func (i *Index) AsksByTLS() bool {
	return slices.ContainsFunc(append(slices.Clone(i.Peers), i.URL), func(at string) bool {
		return strings.HasPrefix(strings.ToLower(at), "https:")
	})
}

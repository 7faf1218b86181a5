package config

import (
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/warmpath/warmpath/internal/indexer"
	"github.com/warmpath/warmpath/internal/network"
	"github.com/warmpath/warmpath/internal/sharedindex"
	"github.com/warmpath/warmpath/kvindex"
)

// validateIndexOff finds settings of the index that have no effect. index.tls is not among them: it is for peers, too.
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

package doctor

import (
	"slices"
	"strings"
	"testing"

	"github.com/warmpath/warmpath/internal/discovery"
	"github.com/warmpath/warmpath/internal/mockengine"
)

// Each fault of roles and connectors is found, and the advice has the text fix.
func TestFaultsOfRolesAreFound(t *testing.T) {
	type worker struct {
		connector mockengine.Connector
		role      mockengine.Role
		settings  discovery.Target
		edit      []string // old and new texts of answers
	}
	settings := func(role, connector string) discovery.Target {
		return discovery.Target{Role: role, Connector: connector}
	}
	nixl := worker{mockengine.NIXL, mockengine.Prefill, settings("prefill", "nixl"), nil}
	for _, test := range []struct {
		name    string
		workers []worker
		want    []string
		fix     string
	}{
		{"a pair", []worker{nixl, {mockengine.NIXL, mockengine.Decode, settings("decode", "nixl"), nil}}, nil, ""},
		{"a worker for prefill beside one for both", []worker{nixl, {mockengine.NIXL, mockengine.Both, settings("both", "nixl"), nil}}, nil, ""},
		{"only prefill workers", []worker{nixl}, []string{"roles error"}, "role=decode"},
		{"connectors that do not pair", []worker{nixl, {mockengine.P2P, mockengine.Decode, settings("decode", "p2p"), nil}},
			[]string{"same_connector error"}, "correct connector="},
		{"a producer that is to decode", []worker{nixl, {mockengine.NIXL, mockengine.Prefill, settings("decode", "nixl"), nil}},
			[]string{"role error"}, "kv_consumer"},
		{"another connector than the engine's", []worker{{mockengine.NIXL, mockengine.Both, settings("", "shared"), nil}},
			[]string{"connector warning"}, "start the engine with that connector"},
		{"a value that the connector needs", []worker{{mockengine.NIXL, mockengine.Both, settings("", "nixl_push"), nil}},
			[]string{"connector warning"}, "engine_id of the worker"},
		{"engines of SGLang", []worker{{mockengine.Rooms, mockengine.Prefill, settings("", ""), nil}, {mockengine.Rooms, mockengine.Decode, settings("", ""), nil}},
			[]string{"prefix_cache note", "prompt note", "prompt note"}, "start the engine once without"},
		{"SGLang without a bootstrap port", []worker{{mockengine.Rooms, mockengine.Prefill, settings("", ""), []string{`"disaggregation_bootstrap_port":`, `"other":`}},
			{mockengine.Rooms, mockengine.Decode, settings("", ""), nil}}, []string{"connector error", "prefix_cache note", "prompt note", "prompt note"}, "--disaggregation-bootstrap-port"},
		{"only decode engines of SGLang", []worker{{mockengine.Rooms, mockengine.Decode, settings("", ""), nil}},
			[]string{"same_connector error", "prefix_cache note", "prompt note"}, "--disaggregation-mode prefill"},
		{"SGLang without a mode", []worker{{"", "", settings("decode", ""), nil}}, []string{"role error"}, "--disaggregation-mode decode"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var targets []discovery.Target
			for _, w := range test.workers {
				s := mock(t, func(c *mockengine.Config) {
					c.Transfer.Connector, c.Transfer.Role = w.connector, w.role
					if w.connector == mockengine.Rooms || w.connector == "" {
						c.Kind = mockengine.SGLang
					}
				})
				w.settings.URL = front(t, s.URL(), nil, strings.NewReplacer(w.edit...))
				targets = append(targets, w.settings)
			}
			r := examined(t, nil, targets...)
			got := summary(r)
			slices.Sort(got)
			if want := slices.Sorted(slices.Values(test.want)); !slices.Equal(got, want) {
				t.Fatalf("findings %q, want %q\n%+v", got, want, r.Findings)
			}
			if !slices.ContainsFunc(r.Findings, func(f Finding) bool { return strings.Contains(f.Fix, test.fix) }) && test.fix != "" {
				t.Errorf("no finding advises %q: %+v", test.fix, r.Findings)
			}
		})
	}
}

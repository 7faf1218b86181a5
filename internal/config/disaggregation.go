package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/discovery"
	"github.com/warmpath/warmpath/policy"
)

// Disaggregation says which requests are divided between two workers.
type Disaggregation struct {
	// Mode is auto, always or never. auto divides a request if that is predicted to cost less than the best worker for
	// the whole request. always divides each request that can be divided. never divides none; workers with the role
	// prefill then get no requests.
	Mode string `yaml:"mode"`
	// UncachedTokenThreshold is for auto: a request is divided only if the best worker for the whole request would have
	// to compute at least this number of prompt tokens. Below 256 tokens a second request and a transfer take longer
	// than the prompt on all usual devices; vllm-router has the same default. 0 is no threshold.
	UncachedTokenThreshold int `yaml:"pd_uncached_token_threshold"`
	// PrefillPolicy and DecodePolicy are the policies that choose the workers of the two parts of a request. Empty means
	// the policy of the request.
	PrefillPolicy string `yaml:"prefill_policy"`
	DecodePolicy  string `yaml:"decode_policy"`
}

// DefaultDisaggregation returns the defaults.
func DefaultDisaggregation() Disaggregation {
	return Disaggregation{Mode: policy.ModeAuto.String(), UncachedTokenThreshold: warmpath.DefaultUncachedTokenThreshold}
}

// legs returns d in the form that a router takes.
func (d *Disaggregation) legs() warmpath.Legs {
	mode, _ := policy.ParseMode(d.Mode) // Validate has checked it
	threshold := d.UncachedTokenThreshold
	if threshold == 0 {
		threshold = -1 // for the router 0 is the default
	}
	return warmpath.Legs{Mode: mode, UncachedTokenThreshold: threshold, PrefillPolicy: d.PrefillPolicy, DecodePolicy: d.DecodePolicy}
}

// policies returns the names of the policies, by their keys.
func (d *Disaggregation) policies() map[string]string {
	named := map[string]string{}
	for key, name := range map[string]string{"prefill_policy": d.PrefillPolicy, "decode_policy": d.DecodePolicy} {
		if name != "" {
			named[key] = name
		}
	}
	return named
}

// Warnings returns a sentence for each combination of settings that is valid, but probably not what the operator wants.
func (c *Config) Warnings() (all []string) {
	prefill, others := 0, 0
	workers := slices.Concat(c.Workers, c.FileWorkers, c.WorkersDNS.Names)
	for _, t := range workers {
		if t.Role == fleet.RolePrefill.String() {
			prefill++
		} else {
			others++
		}
	}
	switch {
	case prefill > 0 && others == 0:
		all = append(all, "all workers have the role prefill, so none generates answers, and requests are refused: add a worker with role: decode or role: both")
	case prefill > 0 && c.Disaggregation.Mode == policy.ModeNever.String():
		all = append(all, "disaggregation.mode is never, so the workers with the role prefill get no requests: give them the role both, or set the mode auto")
	}
	return append(all, unpaired(workers)...)
}

// unpaired returns a warning for each prefill worker whose connector no other worker can have: all connectors are in
// the settings. Where one is not, the engine's answer decides.
func unpaired(workers []discovery.Target) (all []string) {
	has, known := map[string]bool{}, true
	for _, t := range workers {
		if t.Role != fleet.RolePrefill.String() {
			has[t.Connector], known = true, known && t.Connector != ""
		}
	}
	for _, t := range workers {
		if t.Role == fleet.RolePrefill.String() && t.Connector != "" && known && len(has) > 0 && !has[t.Connector] {
			all = append(all, fmt.Sprintf("no worker with the role decode or both has the connector of %s, %s (there are: %s), so this worker gets no requests: give the workers the same connector",
				t.URL, t.Connector, strings.Join(slices.Sorted(maps.Keys(has)), ", ")))
		}
	}
	return all
}

func (d *Disaggregation) validate(found *problems) {
	if _, err := policy.ParseMode(d.Mode); err != nil {
		found.add("disaggregation.mode", fmt.Errorf("%.40q is none of auto, always, never", d.Mode))
	}
	found.atLeast("disaggregation.pd_uncached_token_threshold", int64(d.UncachedTokenThreshold), 0)
}

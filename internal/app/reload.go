package app

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/internal/config"
	"github.com/warmpath/warmpath/internal/discovery"
	"github.com/warmpath/warmpath/internal/queue"
)

// Reload reads the configuration again, and applies the changes that need no restart: workers, policies, service
// levels, names of models, adapters, tenants, the queue and the hold. No request is dropped. It returns the changes,
// one line for each. Settings that need a restart keep their values; Reload names and logs them. If it returns an
// error, the configuration has not changed. Certificates are read again first, because they do not depend on the rest.
func (a *App) Reload() (changes []string, err error) {
	defer func() { a.telemetry.Reloaded(err) }()
	if a.options.Load == nil {
		return nil, errors.New("there is no file to read again: start with --config FILE")
	}
	a.reloading.Lock() // locked before the file is read, so that the later of two reloads applies the newer file
	defer a.reloading.Unlock()
	for _, c := range a.allCertificates() {
		if err := a.reloadCertificates(c); err != nil {
			return nil, err
		}
	}
	seen := look(a.files()) // before the files are read: a change while they are read is seen by the next look
	next, err := a.options.Load()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.seen = seen
	if err != nil {
		return nil, err
	}
	if next.Workers == nil && len(a.cfg.Workers) > 0 {
		return nil, noWorkers(a.options.File)
	}
	if next.Tenants == nil && len(next.AllTenants) == 0 && !a.tenants.Open() {
		return nil, noTenants(a.options.File)
	}
	useWorkers := func() {}
	if !reflect.DeepEqual(next.Workers, a.cfg.Workers) {
		if useWorkers, err = a.workers.Prepare(discovery.SourceList, next.Workers); err != nil {
			return nil, err
		}
		changes = compareWorkers(a.cfg.Workers, next.Workers)
	}
	useFile := func() {}
	if !reflect.DeepEqual(next.FileWorkers, a.cfg.FileWorkers) {
		if useFile, err = a.workers.Prepare(discovery.SourceFile, next.FileWorkers); err != nil {
			return nil, err
		}
		changes = append(changes, compareWorkers(a.cfg.FileWorkers, next.FileWorkers)...)
	}
	policies, err := a.changePolicies(next)
	if err != nil {
		return nil, err
	}
	// No step below can fail.
	changes = append(changes, policies...)
	useWorkers()
	useFile()
	if next.WorkerDefaults != a.cfg.WorkerDefaults {
		a.workers.SetDefaults(next.WorkerDefaults)
		changes = append(changes, "worker_defaults changed")
	}
	if levels := compareLevels(a.cfg, next); len(levels) > 0 {
		a.gateway.UseServiceLevels(next.GatewayLevels())
		changes = append(changes, levels...)
	}
	if names := compareModelNames(a.cfg, next); len(names) > 0 {
		a.gateway.UseModelNames(next.ModelNames())
		changes = append(changes, names...)
	}
	if adapters := compareAdapters(a.cfg, next); len(adapters) > 0 {
		a.gateway.UseAdapters(next.GatewayAdapters())
		changes = append(changes, adapters...)
	}
	if tenants := compareTenants(a.cfg, next); tenants != "" {
		a.useTenants(next)
		changes = append(changes, tenants)
	}
	if next.Queue != a.cfg.Queue {
		a.gateway.UseQueue(next.Queue)
		changes = append(changes, compareQueue(&a.cfg.Queue, &next.Queue))
	}
	if next.Gateway.Hold != a.cfg.Gateway.Hold {
		a.gateway.UseHold(next.Gateway.Hold)
		changes = append(changes, fmt.Sprintf("gateway.hold: %+v, was %+v", next.Gateway.Hold, a.cfg.Gateway.Hold))
	}
	in := *a.cfg
	take(&in, next)
	a.cfg = &in
	a.log.Info("configuration reloaded", "changes", cmp.Or(strings.Join(changes, "; "), "none"))
	for _, key := range in.Differing(next) {
		a.log.Warn("a setting of the file changed, and a restart is needed to apply it", "setting", key)
		changes = append(changes, key+": differs, a restart is needed to apply it")
	}
	return changes, nil
}

// noWorkers returns the error for a file without the key workers: the file may be empty or half written.
func noWorkers(file string) error {
	err := errors.New("no list under workers; the file may be cut short. To remove all workers write workers: []")
	if file != "" {
		err = fmt.Errorf("%s: %w", file, err)
	}
	return err
}

// take copies settings from next to in: all settings that a reload applies. in is the configuration in force.
func take(in, next *config.Config) {
	in.Workers, in.Queue, in.Gateway.Hold = next.Workers, next.Queue, next.Gateway.Hold
	in.WorkerDefaults = next.WorkerDefaults
	in.WorkersFile, in.FileWorkers = next.WorkersFile, next.FileWorkers
	in.Tenants, in.TenantsFile, in.TenantSaltKeyFile = next.Tenants, next.TenantsFile, next.TenantSaltKeyFile
	in.AllTenants, in.TenantSaltKey = next.AllTenants, next.TenantSaltKey
	in.Policy, in.Policies, in.ModelPolicies, in.RequestPolicies = next.Policy, next.Policies, next.ModelPolicies, next.RequestPolicies
	in.Shadow, in.ShadowSample, in.Disaggregation = next.Shadow, next.ShadowSample, next.Disaggregation
	in.ModelAliases, in.ModelFallbacks = next.ModelAliases, next.ModelFallbacks
	in.Adapters, in.AdapterSlots, in.AdapterTimeout = next.Adapters, next.AdapterSlots, next.AdapterTimeout
	in.ServiceLevels, in.ModelServiceLevels = next.ServiceLevels, next.ModelServiceLevels
	in.TenantServiceLevels, in.RequestServiceLevels = next.TenantServiceLevels, next.RequestServiceLevels
	// These two settings are defaults of policies.
	in.Routing.TierWeights, in.Routing.ImbalanceTokens = next.Routing.TierWeights, next.Routing.ImbalanceTokens
}

// changePolicies applies next's policies, and returns the changes. If it returns an error, nothing has changed. Callers
// hold a.mu.
func (a *App) changePolicies(next *config.Config) ([]string, error) {
	change := next.PolicyChange(a.cfg)
	changes := comparePolicies(a.cfg, next, &change)
	if len(changes) == 0 {
		return nil, nil
	}
	sources := a.sourcesOf(next)
	change.Specs = a.attachChanged(change.Specs, next, sources)
	if err := a.router.ChangePolicies(change); err != nil {
		return nil, err
	}
	a.gateway.AllowPolicies(next.RequestPolicies)
	a.gateway.SampleShadow(next.ShadowSample)
	a.useSources(sources)
	if size := next.Spec().BlockSize; size != a.blockSize && next.Routing.BlockSize == 0 {
		changes = append(changes, fmt.Sprintf("policy: a block_size of %d counts after a restart", size))
	}
	return changes, nil
}

// comparePolicies returns lines that say what changes about policies and their use.
func comparePolicies(old, next *config.Config, change *warmpath.PolicyChange) []string {
	var changes []string
	if len(change.Specs) > 0 {
		var names []string
		for _, s := range change.Specs {
			names = append(names, s.Name)
		}
		changes = append(changes, "policies that are new or changed, and know nothing yet: "+strings.Join(names, ", "))
	}
	if len(change.Gone) > 0 {
		changes = append(changes, "policies that are gone: "+strings.Join(change.Gone, ", "))
	}
	if next.Policy != old.Policy {
		changes = append(changes, fmt.Sprintf("policy: %s, was %s", next.Policy, old.Policy))
	}
	if !maps.Equal(next.ModelPolicies, old.ModelPolicies) {
		changes = append(changes, fmt.Sprintf("model_policies: %s, was %s", inFile(next.ModelPolicies), inFile(old.ModelPolicies)))
	}
	if !slices.Equal(next.RequestPolicies, old.RequestPolicies) {
		changes = append(changes, fmt.Sprintf("request_policies: %s, was %s", inFile(next.RequestPolicies), inFile(old.RequestPolicies)))
	}
	if next.Shadow != old.Shadow {
		changes = append(changes, fmt.Sprintf("shadow: %q, was %q", next.Shadow, old.Shadow))
	}
	if next.ShadowSample != old.ShadowSample {
		changes = append(changes, fmt.Sprintf("shadow_sample: %v, was %v", next.ShadowSample, old.ShadowSample))
	}
	o, n := old.Disaggregation, next.Disaggregation
	return append(changes, compareSettings([]setting{
		{"disaggregation.mode", o.Mode, n.Mode},
		{"disaggregation.pd_uncached_token_threshold", o.UncachedTokenThreshold, n.UncachedTokenThreshold},
		{"disaggregation.prefill_policy", o.PrefillPolicy, n.PrefillPolicy},
		{"disaggregation.decode_policy", o.DecodePolicy, n.DecodePolicy},
	})...)
}

// compareLevels returns lines that say which service levels change.
func compareLevels(old, next *config.Config) []string {
	return compareSettings([]setting{
		{"service_levels", old.ServiceLevels, next.ServiceLevels},
		{"model_service_levels", old.ModelServiceLevels, next.ModelServiceLevels},
		{"tenant_service_levels", old.TenantServiceLevels, next.TenantServiceLevels},
		{"request_service_levels", old.RequestServiceLevels, next.RequestServiceLevels},
	})
}

// compareModelNames returns lines that say which aliases and fall-backs of models change.
func compareModelNames(old, next *config.Config) []string {
	return compareSettings([]setting{
		{"model_aliases", old.ModelAliases, next.ModelAliases},
		{"model_fallbacks", old.ModelFallbacks, next.ModelFallbacks},
	})
}

// compareAdapters returns lines that say what changes about adapters that are loaded on demand.
func compareAdapters(old, next *config.Config) []string {
	return compareSettings([]setting{
		{"adapters", old.Adapters, next.Adapters},
		{"adapter_slots", old.AdapterSlots, next.AdapterSlots},
		{"adapter_timeout", old.AdapterTimeout, next.AdapterTimeout},
	})
}

// setting is a setting before and after a reload.
type setting struct {
	key       string
	old, next any
}

// compareSettings returns a line for each setting that changes.
func compareSettings(settings []setting) (changes []string) {
	for _, c := range settings {
		if !reflect.DeepEqual(c.old, c.next) {
			changes = append(changes, fmt.Sprintf("%s: %s, was %s", c.key, inFile(c.next), inFile(c.old)))
		}
	}
	return changes
}

// inFile writes v in the syntax of a file: a list as [a, b], and a map as {key: value} in the order of its keys. A
// service level is written in its short form, such as 5s/100ms.
func inFile(v any) string {
	r := reflect.ValueOf(v)
	var entries []string
	switch r.Kind() {
	case reflect.Slice:
		for i := range r.Len() {
			entries = append(entries, inFile(r.Index(i).Interface()))
		}
		return "[" + strings.Join(entries, ", ") + "]"
	case reflect.Map:
		for each := r.MapRange(); each.Next(); {
			entries = append(entries, fmt.Sprintf("%v: %s", each.Key(), inFile(each.Value().Interface())))
		}
		slices.Sort(entries)
		return "{" + strings.Join(entries, ", ") + "}"
	}
	return fmt.Sprint(v)
}

// compareQueue returns a line that says how requests wait now. old and next differ.
func compareQueue(old, next *queue.Config) string {
	if next.Order != old.Order {
		return fmt.Sprintf("queue: order %s, was %s", next.Order, old.Order)
	}
	return fmt.Sprintf("queue: order %s with other limits", next.Order)
}

// compareWorkers returns lines that say which workers were added, removed and changed.
func compareWorkers(old, next []discovery.Target) []string {
	var changes []string
	before := map[string]discovery.Target{}
	for _, w := range old {
		before[w.URL] = w
	}
	for _, w := range next {
		was, known := before[w.URL]
		switch {
		case !known:
			changes = append(changes, "worker added: "+w.URL)
		case !was.Equal(w):
			changes = append(changes, "worker changed: "+w.URL)
		}
		delete(before, w.URL)
	}
	for _, w := range old {
		if _, gone := before[w.URL]; gone {
			changes = append(changes, "worker removed: "+w.URL)
		}
	}
	return changes
}
